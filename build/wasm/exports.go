package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Exports are the functions that the filter exports to Envoy. Envoy calls whatever
// callback there is, so those in which nothing is done stay out.
var Exports = []string{
	"_initialize", "malloc", "proxy_abi_version_0_2_0",
	"proxy_on_context_create", "proxy_on_vm_start", "proxy_on_configure", "proxy_on_tick",
	"proxy_on_request_headers", "proxy_on_response_headers", "proxy_on_response_body", "proxy_on_log", "proxy_on_delete",
	"proxy_on_grpc_receive", "proxy_on_grpc_close",
}

// own begins the names of the filter's callbacks that take the place of the SDK's: the
// linker refuses a second export of one name.
const own, abi = "sluice_on_", "proxy_on_"

const preamble = "\x00asm\x01\x00\x00\x00"

// setExports returns the module with another export section: Exports, and whatever else
// bears the filter's name, which only tests have.
func setExports(module []byte) ([]byte, error) {
	if !strings.HasPrefix(string(module), preamble) {
		return nil, errors.New("it does not begin as a module does")
	}
	const exportSection = 7
	out, seen := []byte(preamble), false
	for r := (reader{rest: module[len(preamble):]}); len(r.rest) > 0; {
		id, body := r.byte(), r.bytes(r.number())
		if id == exportSection && !r.short {
			seen = true
			var err error
			body, err = newExports(body)
			if err != nil {
				return nil, err
			}
		}
		if r.short {
			return nil, fmt.Errorf("section %d ends early", id)
		}
		out = append(binary.AppendUvarint(append(out, id), uint64(len(body))), body...)
	}
	if !seen {
		return nil, errors.New("it has no exports")
	}
	return out, nil
}

func newExports(section []byte) ([]byte, error) {
	const function = 0
	r, at := reader{rest: section}, map[string]uint32{}
	var names []string
	for n := r.number(); n > 0 && !r.short; n-- {
		name := string(r.bytes(r.number()))
		kind := r.byte()
		index := r.number()
		if kind == function {
			names, at[name] = append(names, name), index
		}
	}
	if r.short {
		return nil, errors.New("its export section ends early")
	}
	kept := slices.Clone(Exports)
	for _, name := range names {
		if callback, ok := strings.CutPrefix(name, own); ok {
			at[abi+callback] = at[name]
		} else if strings.HasPrefix(name, "sluice_") {
			kept = append(kept, name)
		}
	}
	const memory = "\x06memory\x02\x00" // the only one
	out := append(binary.AppendUvarint(nil, uint64(1+len(kept))), memory...)
	for _, name := range kept {
		index, ok := at[name]
		if !ok {
			return nil, fmt.Errorf("it does not export %s", name)
		}
		out = append(append(binary.AppendUvarint(out, uint64(len(name))), name...), function)
		out = binary.AppendUvarint(out, uint64(index))
	}
	return out, nil
}

// reader reads what modules are made of. Once short, it answers zeros.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) number() uint32 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > 1<<32-1 {
		r.rest, r.short = nil, true
		return 0
	}
	r.rest = r.rest[n:]
	return uint32(v)
}

func (r *reader) byte() byte {
	if b := r.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.rest)) {
		r.rest, r.short = nil, true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}
