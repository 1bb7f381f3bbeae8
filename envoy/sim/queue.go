package sim

// queues are the shared queues of a process. The store's lock guards them.
type queues struct {
	byName  map[[2]string]uint32 // vm_id, name → token
	byToken map[uint32]*queue
	last    uint32
}

type queue struct {
	items   [][]byte
	vm      *vm // the one that registered last: it hears of new items
	context uint32
}

// register returns the token of a queue, creating it if need be. It keeps the
// items; from now on the caller hears of new ones.
func (q *queues) register(vmID, name string, v *vm, context uint32) uint32 {
	if q.byName == nil {
		q.byName, q.byToken = map[[2]string]uint32{}, map[uint32]*queue{}
	}
	key := [2]string{vmID, name}
	token, ok := q.byName[key]
	if !ok {
		q.last++
		token = q.last
		q.byName[key] = token
		q.byToken[token] = &queue{}
	}
	q.byToken[token].vm, q.byToken[token].context = v, context
	return token
}

func (q *queues) forget(vmID string) {
	for key, token := range q.byName {
		if key[0] == vmID {
			delete(q.byName, key)
			delete(q.byToken, token)
		}
	}
}

func (v *vm) registerQueue(s []uint64) status {
	name, ok := v.read(s[0], s[1])
	if !ok {
		return invalidMemory
	}
	st := v.host.shared.store
	st.mu.Lock()
	token := st.queues.register(v.host.vmID, string(name), v, v.scope().root.id)
	st.mu.Unlock()
	return v.writeU32(s[2], token)
}

func (v *vm) resolveQueue(s []uint64) status {
	vmID, ok := v.read(s[0], s[1])
	name, ok2 := v.read(s[2], s[3])
	if !ok || !ok2 {
		return invalidMemory
	}
	id := string(vmID)
	if id == "" {
		id = v.host.vmID
	}
	st := v.host.shared.store
	st.mu.Lock()
	token, found := st.queues.byName[[2]string{id, string(name)}]
	st.mu.Unlock()
	if !found {
		return notFound
	}
	return v.writeU32(s[4], token)
}

func (v *vm) enqueue(s []uint64) status {
	data, ok := v.read(s[1], s[2])
	if !ok {
		return invalidMemory
	}
	token := uint32(s[0])
	st := v.host.shared.store
	st.mu.Lock()
	q := st.queues.byToken[token]
	if q == nil {
		st.mu.Unlock()
		return notFound
	}
	q.items = append(q.items, append([]byte(nil), data...))
	listener, context := q.vm, q.context
	st.mu.Unlock()
	listener.post(context, token)
	return statusOK
}

func (v *vm) dequeue(s []uint64) status {
	st := v.host.shared.store
	st.mu.Lock()
	q := st.queues.byToken[uint32(s[0])]
	if q == nil || len(q.items) == 0 {
		st.mu.Unlock()
		if q == nil {
			return notFound
		}
		return empty
	}
	item := q.items[0]
	q.items = q.items[1:]
	st.mu.Unlock()
	return v.give(item, s[1], s[2])
}

// post notes that a queue has items. Its VM hears of it at its next turn, as the
// real host posts to the thread of that VM.
func (v *vm) post(context, token uint32) {
	v.mail.Lock()
	v.ready = append(v.ready, [2]uint32{context, token})
	v.mail.Unlock()
}

// deliver calls the VM for each queue that got items since its last turn.
func (v *vm) deliver() {
	v.mail.Lock()
	ready := v.ready
	v.ready = nil
	v.mail.Unlock()
	for _, r := range ready {
		if sc := v.scopes[r[0]]; sc != nil {
			v.enter(sc, callQueueReady, uint64(r[0]), uint64(r[1]))
		}
	}
}
