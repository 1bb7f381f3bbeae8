package build

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"

	"github.com/sluice-ratelimit/sluice/build/graft"
)

// offered is what the oldest supported Envoy, 1.36, offers a module of ABI
// 0.2.0, which the SDK speaks. A module that imports anything else does not load there.
var offered = map[string]string{
	"env": `
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
		proxy_set_effective_context proxy_done proxy_call_foreign_function`,
	"wasi_snapshot_preview1": `
		fd_write fd_read fd_seek fd_close fd_fdstat_get fd_fdstat_set_flags
		environ_get environ_sizes_get args_get args_sizes_get clock_time_get random_get sched_yield
		poll_oneoff proc_exit path_open fd_prestat_get fd_prestat_dir_name`,
}

// notOffered returns the functions a module imports that are not offered.
func notOffered(ctx context.Context, wasm []byte) ([]string, error) {
	// Nothing is run, so nothing needs compiling to machine code.
	runtime := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	compiled, err := runtime.CompileModule(ctx, wasm)
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for _, function := range compiled.ImportedFunctions() {
		from, name, _ := function.Import()
		if !slices.Contains(strings.Fields(offered[from]), name) {
			missing[from+"."+name] = true
		}
	}
	return slices.Sorted(maps.Keys(missing)), runtime.Close(ctx)
}

func TestFilterImportsOnlyWhatOldestEnvoyOffers(t *testing.T) {
	wasm := filepath.Join(t.TempDir(), "filter.wasm")
	require.NoError(t, graft.Compile("..", wasm))
	module, err := os.ReadFile(wasm)
	require.NoError(t, err)
	missing, err := notOffered(t.Context(), module)
	require.NoError(t, err)
	require.Empty(t, missing, "the oldest supported Envoy would refuse to load the filter")
}

func TestNotOffered(t *testing.T) {
	// Two imports of type func(): env.proxy_log and env.proxy_new.
	module := "\x00asm\x01\x00\x00\x00" +
		"\x01\x04\x01\x60\x00\x00" + // one type, func()
		"\x02\x21\x02" +
		"\x03env\x09proxy_log\x00\x00" +
		"\x03env\x09proxy_new\x00\x00"
	missing, err := notOffered(t.Context(), []byte(module))
	require.NoError(t, err)
	require.Equal(t, []string{"env.proxy_new"}, missing)
}
