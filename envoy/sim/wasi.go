package sim

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
)

// errno is a WASI preview 1 error number.
type errno uint32

const (
	errnoOK     errno = 0
	errnoBadf   errno = 8
	errnoFault  errno = 21
	errnoInval  errno = 28
	errnoNoent  errno = 44
	errnoNosys  errno = 52
	errnoNotsup errno = 58
)

const randomMaxBytes = 64 << 10

// wasiCalls is the subset of WASI preview 1 that Envoy 1.36 registers, with the
// results of that version: newer ones implement more.
var wasiCalls = []hostCall{
	{name: "fd_write", params: "iiii", wasi: (*vm).fdWrite, allowed: inStart | inAlloc},
	{name: "fd_read", params: "iiii", wasi: result(errnoNosys)},
	{name: "fd_seek", params: "iIii", wasi: result(errnoOK)},
	{name: "fd_close", params: "i", wasi: result(errnoOK)},
	{name: "fd_fdstat_get", params: "ii", wasi: (*vm).fdstat, allowed: inStart},
	{name: "fd_fdstat_set_flags", params: "ii", wasi: result(errnoNosys), allowed: inStart},
	{name: "environ_get", params: "ii", wasi: result(errnoOK), allowed: inStart},
	{name: "environ_sizes_get", params: "ii", wasi: (*vm).none, allowed: inStart},
	{name: "args_get", params: "ii", wasi: result(errnoOK), allowed: inStart},
	{name: "args_sizes_get", params: "ii", wasi: (*vm).none, allowed: inStart},
	{name: "clock_time_get", params: "iIi", wasi: (*vm).clockTime, allowed: inStart | inAlloc},
	{name: "random_get", params: "ii", wasi: (*vm).random, allowed: inStart},
	{name: "sched_yield", params: "", wasi: result(errnoOK)},
	{name: "poll_oneoff", params: "iiii", wasi: result(errnoNosys)},
	{name: "proc_exit", params: "i", other: procExit},
	{name: "path_open", params: "iiiiiIIii", wasi: result(errnoNoent)},
	{name: "fd_prestat_get", params: "ii", wasi: result(errnoBadf), allowed: inStart},
	{name: "fd_prestat_dir_name", params: "iii", wasi: result(errnoNosys), allowed: inStart},
}

// result is a call that does nothing.
func result(e errno) func(*vm, []uint64) errno {
	return func(*vm, []uint64) errno { return e }
}

// procExit ends the VM. The real host only logs it, and the guest then runs
// into a trap of its own, which comes to the same.
func procExit(_ *vm, s []uint64) {
	panic(fmt.Errorf("proc_exit(%d)", uint32(s[0])))
}

// fdWrite logs standard output as info and standard error as error.
func (v *vm) fdWrite(s []uint64) errno {
	level := Info
	switch uint32(s[0]) {
	case 1:
	case 2:
		level = Error
	default:
		return errnoBadf
	}
	var text []byte
	for i := range uint64(uint32(s[2])) {
		vec, ok := v.read(uint64(uint32(s[1]))+8*i, 8)
		if !ok {
			return errnoFault
		}
		piece, ok := v.read(uint64(binary.LittleEndian.Uint32(vec)), uint64(binary.LittleEndian.Uint32(vec[4:])))
		if !ok {
			return errnoFault
		}
		text = append(text, piece...)
	}
	v.print(level, text)
	if v.writeU32(s[3], uint32(len(text))) != statusOK {
		return errnoFault
	}
	return errnoOK
}

// print logs what is written, line by line: Go writes a panic in hundreds of
// pieces. An unended line goes out when the callback returns.
func (v *vm) print(level Level, text []byte) {
	if level != v.printing {
		v.flush()
	}
	v.printing = level
	v.printed = append(v.printed, text...)
	for {
		line, rest, ended := bytes.Cut(v.printed, []byte("\n"))
		if !ended {
			return
		}
		if len(line) > 0 {
			v.say(level, string(line))
		}
		v.printed = append(v.printed[:0], rest...)
	}
}

func (v *vm) flush() {
	if len(v.printed) > 0 {
		v.say(v.printing, string(v.printed))
		v.printed = v.printed[:0]
	}
}

func (v *vm) fdstat(s []uint64) errno {
	if fd := uint32(s[0]); fd != 1 && fd != 2 {
		return errnoBadf
	}
	var stat [24]byte
	stat[8] = 64 // may write
	if !v.mem.Write(uint32(s[1]), stat[:]) {
		return errnoFault
	}
	return errnoOK
}

// none says that there are no arguments, and no variables of an environment.
func (v *vm) none(s []uint64) errno {
	if v.writeU32(s[0], 0) != statusOK || v.writeU32(s[1], 0) != statusOK {
		return errnoFault
	}
	return errnoOK
}

func (v *vm) clockTime(s []uint64) errno {
	var now int64
	switch uint32(s[0]) {
	case 0:
		now = v.host.o.Now()
	case 1:
		now = v.host.elapsed()
	default:
		return errnoNotsup
	}
	if v.writeU64(s[2], uint64(now)) != statusOK {
		return errnoFault
	}
	return errnoOK
}

func (v *vm) random(s []uint64) errno {
	size := uint32(s[1])
	if size > randomMaxBytes {
		return errnoInval
	}
	buf, ok := v.mem.Read(uint32(s[0]), size)
	if !ok {
		return errnoFault
	}
	if v.dice != nil {
		_, _ = v.dice.Read(buf)
	} else {
		_, _ = rand.Read(buf)
	}
	return errnoOK
}
