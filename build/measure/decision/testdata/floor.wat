;; The floor: on each request the four host calls that a rate limit needs, and
;; nothing else. It reads the clock and a header, reads a shared value and sets it
;; by compare-and-swap. Where Envoy calls it for responses, it looks whether one has
;; each of the five rate-limit fields, and adds it. What it costs is the ABI's price
;; for those calls.
;;
;; floor.wasm is made of it: wat2wasm floor.wat
(module
  (import "env" "proxy_get_current_time_nanoseconds" (func $clock (param i32) (result i32)))
  (import "env" "proxy_get_header_map_value" (func $header (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_shared_data" (func $get (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_shared_data" (func $set (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_add_header_map_value" (func $add (param i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "x-user-id")
  (data (i32.const 32) "floor/user")
  (data (i32.const 512) "ratelimit-policy")
  (data (i32.const 544) "\"per-user\";q=1000000000;w=31622400")
  (data (i32.const 640) "ratelimit")
  (data (i32.const 672) "\"per-user\";r=999999999;t=31622400")
  (data (i32.const 768) "x-ratelimit-limit")
  (data (i32.const 800) "1000000000, 1000000000;w=31622400")
  (data (i32.const 896) "x-ratelimit-remaining")
  (data (i32.const 928) "999999999")
  (data (i32.const 1024) "x-ratelimit-reset")
  (data (i32.const 1056) "31622400")
  ;; 64: the time, and the 40 bytes of the value, which begins with it
  ;; 128: the header's address and size; the value's address, size and CAS
  ;; 4096: what the host hands over

  ;; The host asks for memory for each value that it returns. The next request
  ;; begins again at 4096.
  (global $free (mut i32) (i32.const 4096))
  (func (export "proxy_on_memory_allocate") (param $size i32) (result i32)
    global.get $free
    (global.set $free (i32.add (global.get $free)
      (i32.and (i32.add (local.get $size) (i32.const 7)) (i32.const -8)))))

  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (global.set $free (i32.const 4096))
    (drop (call $clock (i32.const 64)))
    (drop (call $header (i32.const 0) (i32.const 0) (i32.const 9) (i32.const 128) (i32.const 132)))
    (drop (call $get (i32.const 32) (i32.const 10) (i32.const 136) (i32.const 140) (i32.const 144)))
    (drop (call $set (i32.const 32) (i32.const 10) (i32.const 64) (i32.const 40) (i32.load (i32.const 144))))
    (i32.const 0))

  (func $field (param $name i32) (param $length i32) (param $value i32) (param $size i32)
    (drop (call $header (i32.const 2) (local.get $name) (local.get $length) (i32.const 128) (i32.const 132)))
    (drop (call $add (i32.const 2) (local.get $name) (local.get $length) (local.get $value) (local.get $size))))
  (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
    (call $field (i32.const 512) (i32.const 16) (i32.const 544) (i32.const 34))
    (call $field (i32.const 640) (i32.const 9) (i32.const 672) (i32.const 33))
    (call $field (i32.const 768) (i32.const 17) (i32.const 800) (i32.const 33))
    (call $field (i32.const 896) (i32.const 21) (i32.const 928) (i32.const 9))
    (call $field (i32.const 1024) (i32.const 17) (i32.const 1056) (i32.const 8))
    (i32.const 0))

  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_context_create") (param i32 i32)))
