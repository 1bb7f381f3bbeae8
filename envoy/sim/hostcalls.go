package sim

// Host calls of proxy-wasm. Those for headers, properties and metrics are in files of their own.
// Each unpacks its arguments, acts, and writes its results once.

const (
	streamRequest  = 0
	streamResponse = 1
)

const (
	bufferResponseBody         = 1
	bufferHTTPCallResponseBody = 4
	bufferGRPCReceive          = 5
	bufferVMConfiguration      = 6
	bufferPluginConfiguration  = 7
	bufferCallData             = 8
)

func (v *vm) log(a args) status {
	level := Level(uint32(a.n[0]))
	if level > Critical {
		return badArgument
	}
	v.say(level, string(a.b[0]))
	return statusOK
}

func (v *vm) currentTime(a args) status {
	if st := v.scope().stream; st != nil && st.faults.Clock {
		return internalFailure
	}
	return v.writeU64(a.n[0], uint64(v.host.o.Now()))
}

// Access is one read or write of shared data that a VM is about to make.
type Access struct {
	Key   []byte // valid during the call
	Write bool
	CAS   uint32 // of a write
}

func (v *vm) access(a Access) {
	if v.host.o.OnShared != nil {
		v.host.o.OnShared(v.id, a)
	}
}

func (v *vm) getSharedData(a args) status {
	v.access(Access{Key: a.b[0]})
	if st := v.scope().stream; st != nil && st.faults.Get {
		return internalFailure
	}
	value, cas, ok := v.host.shared.get(a.b[0])
	if !ok {
		return notFound
	}
	if given := v.give(value, a.n[0], a.n[1]); given != statusOK {
		return given
	}
	return v.writeU32(a.n[2], cas)
}

func (v *vm) setSharedData(a args) status {
	key, value := a.b[0], a.b[1]
	cas := uint32(a.n[0])
	v.access(Access{Key: key, Write: true, CAS: cas})
	if st := v.scope().stream; st != nil {
		if st.faults.Set {
			return internalFailure
		}
		if cas != 0 && st.faults.CAS > 0 {
			st.faults.CAS--
			return casMismatch
		}
	}
	if !v.host.shared.set(key, value, cas) {
		return casMismatch
	}
	return statusOK
}

// buffer returns the contents of a buffer in this call. Of a response's body it is the part
// that the guest is shown; a request's reads as empty.
func (v *vm) buffer(kind uint32) ([]byte, status) {
	switch {
	case kind > bufferCallData:
		return nil, badArgument
	case kind == bufferResponseBody && v.scope().stream != nil:
		return v.scope().stream.chunk, statusOK
	case kind == bufferGRPCReceive:
		return v.scope().root.message, statusOK
	case kind == bufferVMConfiguration:
		return v.host.o.VMConfiguration, statusOK
	case kind == bufferPluginConfiguration && v.scope().configuring:
		return v.scope().configuration, statusOK
	case kind == bufferPluginConfiguration, kind == bufferHTTPCallResponseBody:
		return nil, notFound
	}
	return nil, statusOK
}

func (v *vm) getBuffer(a args) status {
	data, found := v.buffer(uint32(a.n[0]))
	if found != statusOK {
		return found
	}
	size := uint64(len(data))
	start := min(uint64(uint32(a.n[1])), size)
	length := uint64(uint32(a.n[2]))
	return v.give(data[start:min(start+length, size)], a.n[3], a.n[4])
}

func (v *vm) setTickPeriod(a args) status {
	root := v.scope().root
	root.tickPeriod = int64(uint32(a.n[0])) * 1e6
	root.tickDue = v.host.elapsed() + root.tickPeriod
	v.host.change()
	return statusOK
}

func (v *vm) setEffectiveContext(a args) status {
	id := uint32(a.n[0])
	if id != 0 && v.scopes[id] == nil {
		return badArgument
	}
	v.effective = id
	return statusOK
}

func (v *vm) continueStream(a args) status {
	if kind := uint32(a.n[0]); kind != streamRequest && kind != streamResponse {
		return unimplemented
	}
	if st := v.scope().stream; st != nil {
		st.resumed = true
		st.showRequest = false
		v.later(st.exchange.goOn)
	}
	return statusOK
}

func (v *vm) sendLocalResponse(a args) status {
	if st := v.scope().stream; st != nil {
		reply := &localReply{
			status:     int(uint32(a.n[0])),
			details:    underscored(string(a.b[0])),
			body:       append([]byte(nil), a.b[1]...),
			headers:    unmarshalPairs(a.b[2]),
			grpcStatus: int32(uint32(a.n[1])),
		}
		x := st.exchange
		v.later(func() { x.handleReply(reply) })
	}
	v.stopIteration = true
	return statusOK
}
