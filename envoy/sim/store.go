package sim

import (
	"bytes"
	"maps"
	"sync"
)

// Store is the shared data of one Envoy process: one lock, one compare-and-swap counter, a
// namespace for each vm_id. Its zero value is not usable; see NewStore.
type Store struct {
	mu     sync.Mutex
	next   uint32 // the number the next write gets; 0 is never issued
	spaces map[string]*Namespace
}

// Namespace is the shared data of one vm_id.
type Namespace struct {
	store *Store
	users int
	data  map[string]entry
}

// entry holds a value that is replaced, never changed in place: readers may
// keep the slice after the lock is gone.
type entry struct {
	value []byte
	cas   uint32
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{next: 1, spaces: map[string]*Namespace{}}
}

// Namespace returns the shared data of a vm_id, creating it if need be.
func (s *Store) Namespace(vmID string) *Namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.spaces[vmID]
	if ns == nil {
		ns = &Namespace{store: s, data: map[string]entry{}}
		s.spaces[vmID] = ns
	}
	return ns
}

// hold and release count the hosts of a vm_id: the data goes with the last.
func (n *Namespace) hold() {
	n.store.mu.Lock()
	n.users++
	n.store.mu.Unlock()
}

func (n *Namespace) release() {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	if n.users--; n.users == 0 {
		clear(n.data)
	}
}

// Get returns the value of key and the number of its last write. The value
// must not be changed.
func (n *Namespace) Get(key string) (value []byte, cas uint32, ok bool) { return n.get([]byte(key)) }

// Set writes a copy of value unless key exists with a write number other than
// cas. A cas of 0 always writes, and so does any cas when key does not exist.
func (n *Namespace) Set(key string, value []byte, cas uint32) bool {
	return n.set([]byte(key), value, cas)
}

func (n *Namespace) get(key []byte) (value []byte, cas uint32, ok bool) {
	n.store.mu.Lock()
	e, ok := n.data[string(key)]
	n.store.mu.Unlock()
	return e.value, e.cas, ok
}

func (n *Namespace) set(key, value []byte, cas uint32) bool {
	value = append(make([]byte, 0, len(value)), value...)
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	if e, ok := n.data[string(key)]; ok && cas != 0 && cas != e.cas {
		return false
	}
	n.data[string(key)] = entry{value, n.store.issue()}
	return true
}

// issue returns the next write number. The caller holds the lock.
func (s *Store) issue() uint32 {
	issued := s.next
	if s.next++; s.next == 0 {
		s.next = 1
	}
	return issued
}

// Len returns the number of keys.
func (n *Namespace) Len() int {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	return len(n.data)
}

// Bytes returns the length of all keys and values together.
func (n *Namespace) Bytes() int {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	sum := 0
	for k, e := range n.data {
		sum += len(k) + len(e.value)
	}
	return sum
}

// Snapshot returns a copy of all keys and values.
func (n *Namespace) Snapshot() map[string][]byte {
	all := map[string][]byte{}
	for key, e := range n.Save().data {
		all[key] = bytes.Clone(e.value)
	}
	return all
}

// Saved is what a namespace held at an instant, and which number its store's
// next write got.
type Saved struct {
	data map[string]entry
	next uint32
}

// Save returns what the namespace holds.
func (n *Namespace) Save() *Saved {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	return &Saved{maps.Clone(n.data), n.store.next}
}

// Restore brings back what Save has returned, write numbers included. No VM of
// another namespace of the store may be running.
func (n *Namespace) Restore(s *Saved) {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	clear(n.data)
	maps.Copy(n.data, s.data)
	n.store.next = s.next
}
