// Package denials counts which keys a worker denies most, and shares the counts with the
// other workers through shared data, so that any of them can answer for all.
//
// Its invariant: memory is bounded. It holds top.MaxRules rules of top.MaxKeys keys each,
// and a rule that denies nothing takes none. Keys in plain text leave this package only if
// the policy says so. It must never read a clock.
//
//	Count    a denial, of a rule's key in this worker
//	Publish  on a tick: what this worker has counted goes to its place in shared data (format.go)
//	Collect  when somebody asks: the places of all workers and what this one has counted, added up
package denials

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

const (
	// PeriodNs is how long denials are counted together. Denials of the running period
	// and of the one before it are known, older ones are forgotten.
	PeriodNs int64 = 600_000_000_000
	// HashBytes is the length of a key's hash.
	HashBytes = 8
	// MaxPlaces is how many workers can publish.
	MaxPlaces = 256

	// freeNs is how long after its last publication a worker's place is free. A worker that
	// has counted denials publishes at least once in a period, see startPeriods.
	freeNs = 3 * PeriodNs
)

// Worker counts the keys that one configuration denies in one worker.
type Worker struct {
	askSecret func() []byte
	secret    []byte // the first that askSecret has returned, nil while there is none

	store   state.Store
	id      uint64  // differs from the id of every other worker
	place   uint64  // where it publishes, or looks first for a free place
	counted []*Rule // the rules with denials
	changed bool    // since the last publication
	message []byte  // reused by each publication
}

// NewWorker returns a worker that shares its counts in the store. No other worker has the
// same id. secret returns the key of the hashes, nil while there is none. The first one that it returns
// stays for the life of the worker.
func NewWorker(store state.Store, id uint64, secret func() []byte) *Worker {
	return &Worker{store: store, id: max(id, 1), askSecret: secret}
}

// Rule is one rule and its denials in this worker.
type Rule struct {
	Name  []byte // differs from the names of all other rules of the proxy
	Plain bool   // keys may be shown as they are

	counts *counts // nil before the first denial
}

// counts are the denials of one rule in this worker.
type counts struct {
	before  period
	running period
}

// period is a span of time with its denials.
type period struct {
	beganNs int64
	denied  top.Sketch
}

// Denials are the denials of one rule, as one worker or all workers have counted them.
type Denials struct {
	SinceNs int64 // when counting began, 0 if nothing was counted
	top.List
}

// Count counts a denial of the key.
func (w *Worker) Count(r *Rule, key *policy.Key, now int64) {
	if r.counts == nil && !w.begin(r, now) {
		return
	}
	w.startPeriods(r.counts, now)
	w.changed = true
	id, _ := state.StableHash(key.Bytes)
	fresh := r.counts.running.denied.Add(id)
	if fresh != nil && r.Plain {
		var text [top.MaxText + maxPart + 1]byte
		fresh.SetText(appendKey(text[:0], key))
	}
}

// begin gives the rule its counts. It returns false if there is no room for another rule,
// or no secret.
func (w *Worker) begin(r *Rule, now int64) bool {
	if len(w.counted) == top.MaxRules || !w.loadSecret() {
		return false
	}
	r.counts = &counts{}
	r.counts.before.restart(now)
	r.counts.running.restart(now)
	w.counted = append(w.counted, r)
	return true
}

// loadSecret asks for the secret if it is not known yet, and reports whether it is known now.
func (w *Worker) loadSecret() bool {
	if w.secret == nil {
		w.secret = w.askSecret()
	}
	return w.secret != nil
}

// startPeriods starts a new period if the running one is over, or if the clock was set back by
// more than a period. This counts as a change, so that a worker that denies nothing any more
// still publishes once in a period, and keeps its place.
func (w *Worker) startPeriods(c *counts, now int64) {
	passed := now - c.running.beganNs
	switch {
	case passed >= -PeriodNs && passed < PeriodNs:
		return
	case passed >= PeriodNs && passed < 2*PeriodNs:
		c.before = c.running
	default:
		c.before.restart(now)
	}
	c.running.restart(now)
	w.changed = true
}

func (p *period) restart(now int64) {
	*p = period{} // a literal with the time makes TinyGo write each of its 2 KB by itself
	p.beganNs = now
}

// both returns the denials of both periods.
func (c *counts) both() Denials {
	return Denials{c.before.beganNs, top.Merge(c.before.denied.List(), c.running.denied.List())}
}

// Publish writes what this worker has counted, if that has changed since it last did. Call
// it on a tick.
func (w *Worker) Publish(now int64) {
	for _, r := range w.counted {
		w.startPeriods(r.counts, now)
	}
	if !w.changed {
		return
	}
	lists := make([]list, len(w.counted))
	for i, r := range w.counted {
		lists[i] = list{w.listID(r), r.counts.both()}
	}
	cutToFit(lists)
	w.message = appendMessage(w.message[:0], head{worker: w.id, atNs: now}, lists)
	w.changed = !w.write(now)
}

// cutToFit keeps as many keys of each list as a message has room for.
func cutToFit(lists []list) {
	for n := top.MaxKeys; messageBytes(lists) > top.MaxShared; n-- {
		for i := range lists {
			lists[i].List = lists[i].Cut(n)
		}
	}
}

// write writes the message to this worker's place. If another worker has that place, this one
// moves on to the next free place. It returns false if nothing was written.
func (w *Worker) write(now int64) bool {
	for range MaxPlaces {
		taken := false
		status := state.Update(w.store, placeKey(w.place), func(old []byte) ([]byte, state.Status) {
			owner := ownerOf(old, now)
			taken = owner != 0 && owner != w.id
			if taken {
				return nil, state.OK
			}
			return w.message, state.OK
		})
		if !taken {
			return status == state.OK
		}
		w.place = (w.place + 1) % MaxPlaces
	}
	return false
}

// Release forgets what this worker has counted, and frees its place.
func (w *Worker) Release(now int64) {
	if len(w.counted) == 0 {
		return
	}
	state.Update(w.store, placeKey(w.place), func(old []byte) ([]byte, state.Status) {
		if ownerOf(old, now) != w.id {
			return nil, state.OK
		}
		return []byte{}, state.OK
	})
	for _, r := range w.counted {
		r.counts = nil
	}
	w.counted = nil
}

// Collect returns the denials of the rules that all workers have counted: this one as of now, the
// others as of their last publication. ok is false if shared data could not be read.
func (w *Worker) Collect(rules []*Rule, now int64) (ofRules []Denials, ok bool) {
	if !w.loadSecret() {
		return nil, false
	}
	ofOthers, ok := w.readOthers(now)
	if !ok {
		return nil, false
	}
	ofRules = make([]Denials, len(rules))
	for i, r := range rules {
		parts := ofOthers[w.listID(r)]
		if r.counts != nil {
			w.startPeriods(r.counts, now)
			parts = append(parts, r.counts.both())
		}
		ofRules[i] = merge(parts)
		if !r.Plain {
			ofRules[i].Keys = w.hashed(ofRules[i].Keys)
		}
	}
	return ofRules, true
}

// readOthers reads what the other workers have published, by the number of the list.
func (w *Worker) readOthers(now int64) (lists map[uint64][]Denials, ok bool) {
	lists = map[uint64][]Denials{}
	for place := range uint64(MaxPlaces) {
		value, _, status := w.store.Get(placeKey(place))
		if status == state.Failed {
			return nil, false
		}
		owner := ownerOf(value, now)
		if owner == 0 || owner == w.id {
			continue
		}
		for _, l := range decodeLists(value) {
			lists[l.id] = append(lists[l.id], l.Denials)
		}
	}
	return lists, true
}

// hashed returns the keys with their hashes as texts.
func (w *Worker) hashed(keys []top.Key) []top.Key {
	list := make([]top.Key, len(keys))
	for i, k := range keys {
		list[i] = top.Key{ID: k.ID, Denied: k.Denied, Error: k.Error}
		list[i].SetText(w.hash(k.ID))
	}
	return list
}

func merge(parts []Denials) (sum Denials) {
	lists := make([]top.List, len(parts))
	for i, p := range parts {
		lists[i] = p.List
		if i == 0 || p.SinceNs < sum.SinceNs {
			sum.SinceNs = p.SinceNs
		}
	}
	sum.List = top.Merge(lists...)
	return sum
}

// ownerOf returns the worker that has a place by the value published there, 0 if the place
// is free.
func ownerOf(value []byte, now int64) (worker uint64) {
	h, ok := decodeHead(value)
	if !ok || h.atNs <= now-freeNs || h.atNs > now+PeriodNs {
		return 0
	}
	return h.worker
}

// listID returns the number that the rule's lists have when they are published. It depends on how
// keys are shown and on the secret, so that a worker never adds up lists whose keys are shown in
// another way than its own.
func (w *Worker) listID(r *Rule) uint64 {
	way := append([]byte("\x00hash\x00"), w.secret...)
	if r.Plain {
		way = []byte("\x00plain")
	}
	id, _ := state.StableHash(append(way, r.Name...))
	return id
}

// Hash returns what Collect shows of a key if the rule is not Plain, nil while there is no
// secret.
func (w *Worker) Hash(key []byte) []byte {
	if !w.loadSecret() {
		return nil
	}
	id, _ := state.StableHash(key)
	return w.hash(id)
}

// hash returns the bytes that stand for the key with this number.
func (w *Worker) hash(id uint64) []byte {
	mac := hmac.New(sha256.New, w.secret)
	mac.Write(le.AppendUint64(nil, id))
	return mac.Sum(nil)[:HashBytes]
}
