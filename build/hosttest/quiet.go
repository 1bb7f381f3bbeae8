package hosttest

import "github.com/sluice-ratelimit/sluice/shared/state"

// Steady is a proxy whose answers cost no memory, as the arena's do not.
type Steady struct {
	*Proxy
	buffer []byte
	Values map[string]string // attributes by path
}

func (s *Steady) Attribute(path string) (string, bool) {
	v, ok := s.Values[path]
	return v, ok
}

func (s *Steady) Header(name string) (string, bool) {
	v := s.Headers[name]
	if len(v) == 0 {
		return "", false
	}
	return v[0], true
}

func (s *Steady) JoinedHeader(name string) (string, bool) { return s.Header(name) }

func (s *Steady) ClientAddress() (string, bool) { return s.Client, true }

func (s *Steady) Get(key []byte) ([]byte, uint32, state.Status) {
	c, ok := s.Store[string(key)]
	if !ok {
		return nil, 0, state.NotFound
	}
	s.buffer = append(s.buffer[:0], c.Value...)
	return s.buffer, c.CAS, state.OK
}

func (s *Steady) Set(key, value []byte, cas uint32) state.Status {
	c, ok := s.Store[string(key)]
	if !ok {
		return s.Proxy.Set(key, value, cas)
	}
	copy(c.Value, value)
	return state.OK
}

// Quiet allocates nothing of its own once its buffers are large enough.
type Quiet struct {
	*Proxy
	Cells   map[string]*Cell
	buffers [4][]byte
	next    int
}

func (q *Quiet) Header(name string) (string, bool) {
	if v := q.Headers[name]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}

func (q *Quiet) Get(key []byte) ([]byte, uint32, state.Status) {
	c := q.Cells[string(key)]
	if c == nil {
		return nil, 0, state.NotFound
	}
	q.next = (q.next + 1) % len(q.buffers)
	q.buffers[q.next] = append(q.buffers[q.next][:0], c.Value...)
	return q.buffers[q.next], c.CAS, state.OK
}

func (q *Quiet) Set(key, value []byte, cas uint32) state.Status {
	c := q.Cells[string(key)]
	if c == nil {
		c = &Cell{}
		q.Cells[string(key)] = c
	} else if cas != 0 && cas != c.CAS {
		return state.Mismatch
	}
	q.CAS++
	c.Value, c.CAS = append(c.Value[:0], value...), q.CAS
	return state.OK
}
