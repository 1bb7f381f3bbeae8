// Package top keeps the keys that a rule denies most, in memory that does not grow:
// the space-saving algorithm of Metwally, Agrawal and El Abbadi, "Efficient
// Computation of Frequent and Top-k Elements in Data Streams", 2005.
//
// Its invariant: a key has been denied at least Key.Denied times and at most
// Key.Error times more, and a key that is not listed at most List.Rest times.
//
// It builds for wasm, and must never read a clock.
package top

import (
	"sort"
	"unsafe"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// MaxKeys is how many keys are kept.
	MaxKeys = 32
	// MaxText is how many bytes of a key's text are kept.
	MaxText = 47
	// MaxRules is how many rules a worker keeps keys of.
	MaxRules = 256
	// MaxShared is how many bytes a worker tells others.
	MaxShared = 16 << 10
)

// MaxBytes is the most that a worker's memory grows by for so many rules: two sketches
// each, times six, because the garbage collector lets memory outgrow its use that far, and
// the shared bytes while they are written.
func MaxBytes(rules int) uint64 {
	return uint64(6*min(rules, MaxRules)*int(unsafe.Sizeof([2]Sketch{})) + 3*MaxShared)
}

// Key is a key that has been denied.
type Key struct {
	ID     uint64 // of the whole key
	Denied uint32 // times, at least
	Error  uint32 // how many times more it may have been
	n      uint8
	text   [MaxText]byte
}

// SetText sets the key's text. Of a longer one the beginning is kept.
func (k *Key) SetText(text []byte) { k.n = uint8(copy(k.text[:], text)) }

// Text is the beginning of the key's text.
func (k *Key) Text() []byte { return k.text[:k.n] }

// Most is how often the key may have been denied.
func (k *Key) Most() uint32 { return limit.AddSaturating(k.Denied, k.Error) }

// Sketch counts denials. The zero value has counted none.
type Sketch struct {
	n    int
	keys [MaxKeys]Key
}

// Add counts a denial of the key. It returns a key that was not among those kept,
// whose text the caller sets, else nil.
func (s *Sketch) Add(id uint64) (fresh *Key) {
	least := 0
	for i := range s.keys[:s.n] {
		k := &s.keys[i]
		if k.ID == id {
			k.Denied = limit.AddSaturating(k.Denied, 1)
			return nil
		}
		if k.Most() < s.keys[least].Most() {
			least = i
		}
	}
	var before uint32
	if s.n < MaxKeys {
		fresh = &s.keys[s.n]
		s.n++
	} else {
		fresh = &s.keys[least]
		before = fresh.Most()
	}
	*fresh = Key{ID: id, Denied: 1, Error: before}
	return fresh
}

// List returns the keys kept. They are the sketch's own memory.
func (s *Sketch) List() List {
	l := List{Keys: s.keys[:s.n]}
	if s.n == MaxKeys {
		l.Rest = ^uint32(0)
		for i := range l.Keys {
			l.Rest = min(l.Rest, l.Keys[i].Most())
		}
	}
	return l
}

// List is the denials of a rule, as far as they are known.
type List struct {
	Keys []Key
	Rest uint32 // how often any other key may have been denied
}

// Merge returns what lists say together: up to MaxKeys keys, those first that have
// been denied most for certain.
func Merge(lists ...List) List {
	var sum List
	at := map[uint64]int{}
	for _, l := range lists {
		sum.Rest = limit.AddSaturating(sum.Rest, l.Rest)
		for i := range l.Keys {
			k := &l.Keys[i]
			j, have := at[k.ID]
			if !have {
				j = len(sum.Keys)
				at[k.ID] = j
				sum.Keys = append(sum.Keys, *k)
				sum.Keys[j].Denied, sum.Keys[j].Error = 0, 0
			}
			sum.Keys[j].Denied = limit.AddSaturating(sum.Keys[j].Denied, k.Denied)
		}
	}
	for _, l := range lists {
		listed := make(map[uint64]uint32, len(l.Keys))
		for i := range l.Keys {
			listed[l.Keys[i].ID] = l.Keys[i].Error
		}
		for i := range sum.Keys {
			k := &sum.Keys[i]
			if more, ok := listed[k.ID]; ok {
				k.Error = limit.AddSaturating(k.Error, more)
			} else {
				k.Error = limit.AddSaturating(k.Error, l.Rest)
			}
		}
	}
	return sum.Cut(MaxKeys)
}

// Cut returns the n keys that have been denied most for certain.
func (l List) Cut(n int) List {
	sort.Slice(l.Keys, func(i, j int) bool {
		a, b := &l.Keys[i], &l.Keys[j]
		if a.Denied != b.Denied {
			return a.Denied > b.Denied
		}
		return a.Error > b.Error || a.Error == b.Error && a.ID < b.ID
	})
	for i := n; i < len(l.Keys); i++ {
		l.Rest = max(l.Rest, l.Keys[i].Most())
	}
	l.Keys = l.Keys[:min(n, len(l.Keys))]
	return l
}
