package hosttest

import "github.com/sluice-ratelimit/sluice/shared/state"

// Steady is a proxy whose answers cost no memory once its buffers are large enough, as
// the arena's do not.
type Steady struct {
	*Proxy
	Values  map[string]string // attributes by path
	cells   map[string]*Cell
	buffers [4][]byte
	next    int
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
	c := s.cells[string(key)]
	if c == nil {
		return nil, 0, state.NotFound
	}
	s.next = (s.next + 1) % len(s.buffers)
	s.buffers[s.next] = append(s.buffers[s.next][:0], c.Value...)
	return s.buffers[s.next], c.CAS, state.OK
}

func (s *Steady) Set(key, value []byte, cas uint32) state.Status {
	c := s.cells[string(key)]
	if c == nil {
		if s.cells == nil {
			s.cells = map[string]*Cell{}
		}
		c = &Cell{}
		s.cells[string(key)] = c
	} else if cas != 0 && cas != c.CAS {
		return state.Mismatch
	}
	s.CAS++
	c.Value, c.CAS = append(c.Value[:0], value...), s.CAS
	return state.OK
}
