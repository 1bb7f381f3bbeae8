package envoy_test

import "encoding/binary"

// probeName is what the probe counts its requests under, unless a test says
// otherwise: a name with a rule in it.
const probeName = "rule=.=per.user-1;.;rate_limit_allowed_total"

// probeModule returns a filter that answers every request with its own configuration
// and counts it under the name. It is written by hand: Envoy loads it at once, and takes five seconds
// of processor time for what Go compiles.
func probeModule(name string) []byte {
	const (
		i32, i64 = "\x7f", "\x7e"
		get      = "\x20" // a local, by number
		pause    = "\x41\x01"
	)
	// Memory: the metric's id at 0, its name at 16. For each context 16 bytes from 4096:
	// its parent, then address and length of its configuration. What Envoy allocates
	// comes after a quarter of it.
	own := func(offset int64) string { return get + "\x00\x41\x04\x74" + constant(4096+offset) + "\x6a" } // 16*context + 4096 + offset
	load := func(offset byte) string { return get + "\x03\x28\x02" + string(rune(offset)) }               // of the parent's 16 bytes
	return []byte("\x00asm\x01\x00\x00\x00" +
		section(1, list(
			signature(i32+i32+i32+i32+i32, i32), signature(i32+i32+i32+i32+i32+i32+i32+i32, i32),
			signature(i32+i32+i32+i32, i32), signature(i32+i64, i32),
			signature("", ""), signature(i32, i32), signature(i32+i32, ""), signature(i32+i32, i32), signature(i32+i32+i32, i32),
		)) +
		section(2, list(
			imported("proxy_get_buffer_bytes", 0), imported("proxy_send_local_response", 1),
			imported("proxy_define_metric", 2), imported("proxy_increment_metric", 3),
		)) +
		section(3, list("\x04", "\x05", "\x06", "\x07", "\x08")) +
		section(5, list("\x00\x10")) + // 16 pages
		section(6, list(i32+"\x01"+constant(1<<18)+"\x0b")) + // where the next allocation goes
		section(7, list(
			exported("memory", "\x02\x00"), exported("proxy_abi_version_0_2_0", "\x00\x04"), exported("proxy_on_memory_allocate", "\x00\x05"),
			exported("proxy_on_context_create", "\x00\x06"), exported("proxy_on_configure", "\x00\x07"), exported("proxy_on_request_headers", "\x00\x08"),
		)) +
		section(10, list(
			body("", ""),
			// Returns the global and moves it on by the size, to a multiple of 8.
			body("", "\x23\x00"+"\x23\x00"+get+"\x00\x6a"+constant(7)+"\x6a"+constant(-8)+"\x71\x24\x00"),
			body("", own(0)+get+"\x01\x36\x02\x00"),
			// get_buffer_bytes(plugin configuration, 0, size, address, length); define_metric(counter, name, id).
			body("", constant(7)+constant(0)+get+"\x01"+own(4)+own(8)+"\x10\x00\x1a"+
				constant(0)+constant(16)+constant(int64(len(name)))+constant(0)+"\x10\x02\x1a"+constant(1)),
			// increment_metric(id, 1); send_local_response(200, no details, configuration, no headers, no gRPC status).
			body("\x01\x01"+i32, constant(0)+"\x28\x02\x00\x42\x01\x10\x03\x1a"+
				own(0)+"\x28\x02\x00\x41\x04\x74"+constant(4096)+"\x6a\x21\x03"+
				constant(200)+constant(0)+constant(0)+load(4)+load(8)+constant(0)+constant(0)+constant(-1)+"\x10\x01\x1a"+pause),
		)) +
		section(11, list("\x00"+constant(16)+"\x0b"+sized(name))))
}

func constant(n int64) string {
	code := []byte{0x41} // i32.const, a signed LEB128
	for {
		low := byte(n & 0x7f)
		n >>= 7
		if n == 0 && low&0x40 == 0 || n == -1 && low&0x40 != 0 {
			return string(append(code, low))
		}
		code = append(code, low|0x80)
	}
}

func number(n int) string { return string(binary.AppendUvarint(nil, uint64(n))) }

func sized(text string) string { return number(len(text)) + text }

func list(items ...string) string {
	text := number(len(items))
	for _, item := range items {
		text += item
	}
	return text
}

func section(id byte, content string) string { return string([]byte{id}) + sized(content) }

func signature(parameters, results string) string {
	return "\x60" + sized(parameters) + sized(results)
}

func imported(name string, kind int) string {
	return sized("env") + sized(name) + "\x00" + number(kind)
}

func exported(name, what string) string { return sized(name) + what }

func body(locals, code string) string {
	if locals == "" {
		locals = "\x00"
	}
	return sized(locals + code + "\x0b")
}
