package envoy

import "strings"

// hostFunctions are all that the oldest supported Envoy offers a module, WASI's
// too, and so all that the filter may import. None is left out: that would save
// nothing, and a newer binary put in the place of this one might need it.
const hostFunctions = `
	proxy_log proxy_get_status proxy_set_property proxy_get_property
	proxy_send_local_response proxy_continue_stream proxy_close_stream
	proxy_get_shared_data proxy_set_shared_data proxy_register_shared_queue proxy_resolve_shared_queue
	proxy_dequeue_shared_queue proxy_enqueue_shared_queue
	proxy_get_header_map_value proxy_add_header_map_value proxy_replace_header_map_value
	proxy_remove_header_map_value proxy_get_header_map_pairs proxy_set_header_map_pairs proxy_get_header_map_size
	proxy_get_buffer_status proxy_get_buffer_bytes proxy_set_buffer_bytes
	proxy_http_call proxy_grpc_call proxy_grpc_stream proxy_grpc_close proxy_grpc_cancel proxy_grpc_send
	proxy_set_tick_period_milliseconds proxy_get_current_time_nanoseconds
	proxy_define_metric proxy_increment_metric proxy_record_metric proxy_get_metric
	proxy_set_effective_context proxy_done proxy_call_foreign_function
	fd_write fd_read fd_seek fd_close fd_fdstat_get fd_fdstat_set_flags
	environ_get environ_sizes_get args_get args_sizes_get clock_time_get random_get sched_yield
	poll_oneoff proc_exit path_open fd_prestat_get fd_prestat_dir_name`

// callbacks are those that the filter has something to do in.
const callbacks = `
	proxy_on_context_create proxy_on_vm_start proxy_on_configure proxy_on_tick
	proxy_on_request_headers proxy_on_response_headers proxy_on_delete`

// DefaultCapabilities is the allow-list of the filter. A VM keeps the list it
// was made with: a changed one takes effect with the next binary or vm_id.
func DefaultCapabilities() []string { return strings.Fields(hostFunctions + callbacks) }
