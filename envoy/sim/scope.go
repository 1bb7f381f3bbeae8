package sim

import "slices"

// scope is a context of the guest: of a configuration (a root), or of a
// request. The one with id 0 belongs to the VM itself.
type scope struct {
	id     uint32
	vm     *vm
	root   *scope // itself for a root
	stream *stream

	// Of a root.
	configuration []byte
	configuring   bool  // its configuration may be read
	tickPeriod    int64 // ns, 0 = none
	tickDue       int64
	streams       int  // requests under way
	retired       bool // another configuration has taken its place

	// Of a root's gRPC streams, see grpc.go.
	grpc    map[uint32]*grpcStream // by token
	message []byte                 // that it is told of
}

// stream is what a request's context knows.
type stream struct {
	in           *Request
	exchange     *Exchange
	request      headers
	response     headers
	trailers     headers // of the response
	chunk        []byte  // of its body, while the guest is shown it
	showRequest  bool    // the request headers can be read and changed
	showResponse bool
	logging      bool
	ended        bool
	grpc         bool
	resumed      bool
	trapped      bool // in its own callback, not in one inside
	reply        *localReply
	status       int
	details      string
	flags        uint64
	told         bool // details are known
	sent         int  // bytes of the response's body
	faults       Faults
	start        int64             // by the clock,
	began        int64             // and by the monotonic one
	took         int64             // from then to its end
	state        map[string]string // what the guest set as properties
}

// tell sets the details of the response, which can be read from then on.
func (st *stream) tell(details string, flags uint64) {
	st.details, st.flags = details, flags
	st.told = true
}

// newRoot makes the context of a configuration. The guest does not know it yet.
func (v *vm) newRoot(configuration []byte) *scope {
	sc := &scope{id: v.newID(), vm: v, configuration: configuration}
	sc.root = sc
	v.scopes[sc.id] = sc
	v.roots = append(v.roots, sc)
	return sc
}

// open makes the context of a request and announces it to the guest.
func (v *vm) open(root *scope, x *Exchange, r *Request) *scope {
	var sc *scope
	if n := len(v.spare); n > 0 {
		sc = v.spare[n-1]
		v.spare = v.spare[:n-1]
		*sc.stream = stream{request: sc.stream.request[:0]}
	} else {
		sc = &scope{vm: v, stream: &stream{}}
	}
	sc.id, sc.root = v.newID(), root
	sc.stream.in, sc.stream.exchange = r, x
	sc.stream.start, sc.stream.began = v.host.o.Now(), v.host.elapsed()
	if r.Faults != nil {
		sc.stream.faults = *r.Faults
	}
	v.scopes[sc.id] = sc
	root.streams++
	v.enter(sc, callContextCreate, uint64(sc.id), uint64(root.id))
	return sc
}

// end closes the context of a request, and then its root if that waited for
// it.
func (v *vm) end(sc *scope) {
	st := sc.stream
	st.showResponse, st.ended = false, true
	st.logging = true
	v.enter(sc, callLog, uint64(sc.id))
	st.logging = false
	v.enter(sc, callDone, uint64(sc.id))
	v.enter(sc, callDelete, uint64(sc.id))
	delete(v.scopes, sc.id)
	st.in, st.exchange = nil, nil
	root := sc.root
	v.spare = append(v.spare, sc)
	root.streams--
	if root.retired && root.streams == 0 {
		v.remove(root)
	}
}

// retire ends a root as soon as no request uses it.
func (v *vm) retire(root *scope) {
	root.retired = true
	if root.streams == 0 {
		v.remove(root)
	}
}

// remove deletes a root, and the VM with its last one.
func (v *vm) remove(root *scope) {
	v.enter(root, callDone, uint64(root.id))
	v.enter(root, callDelete, uint64(root.id))
	delete(v.scopes, root.id)
	root.hangUp()
	v.roots = slices.DeleteFunc(slices.Clone(v.roots), func(sc *scope) bool { return sc == root })
	if len(v.roots) == 0 {
		v.close()
	}
}
