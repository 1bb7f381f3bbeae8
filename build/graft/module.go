package graft

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The sections of a module that a graft reads or adds to.
const (
	typeSection     = 1
	importSection   = 2
	functionSection = 3
	globalSection   = 6
	exportSection   = 7
	codeSection     = 10
)

// The kinds of what is imported and exported, and the types of values.
const (
	kindFunction = 0
	typeI32      = 0x7f
)

const preamble = "\x00asm\x01\x00\x00\x00"

// module is a module's sections, in their order.
type module struct {
	sections []section
	imported []imported // functions; the module's own have the numbers behind
}

// imported is a function that the host has.
type imported struct{ module, name string }

type section struct {
	id   byte
	body []byte
}

// export is one line of the export section.
type export struct {
	name  string
	kind  byte
	index uint32
}

func parse(wasm []byte) (*module, error) {
	if len(wasm) < len(preamble) || string(wasm[:len(preamble)]) != preamble {
		return nil, errors.New("it does not begin as a module does")
	}
	m := &module{}
	for r := (reader{rest: wasm[len(preamble):]}); len(r.rest) > 0; {
		id := r.byte()
		body := r.bytes(r.number())
		if r.short {
			return nil, fmt.Errorf("section %d ends early", id)
		}
		m.sections = append(m.sections, section{id, body})
	}
	for _, id := range []byte{typeSection, functionSection, globalSection, exportSection, codeSection} {
		if m.section(id) == nil {
			return nil, fmt.Errorf("it has no section %d", id)
		}
	}
	return m, m.readImports()
}

func (m *module) section(id byte) *section {
	for i := range m.sections {
		if m.sections[i].id == id {
			return &m.sections[i]
		}
	}
	return nil
}

func (m *module) readImports() error {
	s := m.section(importSection)
	if s == nil {
		return nil
	}
	r := reader{rest: s.body}
	for n := r.number(); n > 0 && !r.short; n-- {
		f := imported{string(r.bytes(r.number())), string(r.bytes(r.number()))}
		if kind := r.byte(); kind != kindFunction {
			return fmt.Errorf("it imports something of kind %d, not only functions", kind)
		}
		r.number()
		m.imported = append(m.imported, f)
	}
	if r.short {
		return errors.New("its import section ends early")
	}
	return nil
}

// add appends items to a section that is a list, and returns the number that
// the first of them gets.
func (m *module) add(id byte, items ...[]byte) (first uint32) {
	s := m.section(id)
	r := reader{rest: s.body}
	first = r.number()
	s.body = append(binary.AppendUvarint(nil, uint64(first)+uint64(len(items))), r.rest...)
	for _, item := range items {
		s.body = append(s.body, item...)
	}
	return first
}

// editBodies replaces the code of every function by what edit makes of it.
func (m *module) editBodies(edit func(code []byte) []byte) error {
	s := m.section(codeSection)
	r := reader{rest: s.body}
	count := r.number()
	body := binary.AppendUvarint(make([]byte, 0, len(s.body)), uint64(count))
	for n := count; n > 0 && !r.short; n-- {
		code := edit(r.bytes(r.number()))
		body = append(binary.AppendUvarint(body, uint64(len(code))), code...)
	}
	if r.short {
		return errors.New("its code section ends early")
	}
	s.body = body
	return nil
}

func (m *module) exports() ([]export, error) {
	r := reader{rest: m.section(exportSection).body}
	var list []export
	for n := r.number(); n > 0 && !r.short; n-- {
		list = append(list, export{string(r.bytes(r.number())), r.byte(), r.number()})
	}
	if r.short {
		return nil, errors.New("its export section ends early")
	}
	return list, nil
}

func (m *module) setExports(list []export) {
	body := binary.AppendUvarint(nil, uint64(len(list)))
	for _, e := range list {
		body = append(binary.AppendUvarint(body, uint64(len(e.name))), e.name...)
		body = binary.AppendUvarint(append(body, e.kind), uint64(e.index))
	}
	m.section(exportSection).body = body
}

func (m *module) bytes() []byte {
	out := []byte(preamble)
	for _, s := range m.sections {
		out = binary.AppendUvarint(append(out, s.id), uint64(len(s.body)))
		out = append(out, s.body...)
	}
	return out
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
