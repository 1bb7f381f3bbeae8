// Package denials knows which keys a worker denies most, and tells the other workers
// through shared data, so that any of them can answer for all.
//
// Its invariant: memory is bounded, top.MaxRules rules of top.MaxKeys keys each, and a rule
// that denies nothing takes none. Keys as they are leave this package only if the
// policy says so. It must never read a clock.
package denials

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

const (
	// PeriodNs is how long denials are counted together. What is known is of the
	// running period and of the one before.
	PeriodNs int64 = 600_000_000_000
	// HashBytes is the length of a key's hash.
	HashBytes = 8
)

// Worker keeps the keys that one configuration denies in one worker.
type Worker struct {
	// Secret returns the key of the hashes, nil while there is none.
	Secret func() []byte

	store   state.Store
	id      uint64 // of this worker among those that publish
	place   uint64 // where it publishes, if no other worker has that
	kept    []*Rule
	changed bool // since the last publication
	message []byte
}

// NewWorker returns a worker with that number, which no other has, that shares what it
// knows in the store.
func NewWorker(store state.Store, id uint64) *Worker {
	return &Worker{store: store, id: max(id, 1)}
}

// Rule is one rule's denials.
type Rule struct {
	Name  []byte // tells it apart from all rules of the proxy
	Plain bool   // keys may be shown as they are

	id     uint64
	kept   *[2]top.Sketch // of the period before and of the running one; nil before the first denial
	began  [2]int64
	secret []byte
}

// Count counts a denial of the key.
func (w *Worker) Count(r *Rule, key *policy.Key, now int64) {
	if r.kept == nil && !w.keep(r, now) {
		return
	}
	w.rotate(r, now)
	w.changed = true
	id, _ := state.StableHash(key.Bytes)
	if fresh := r.kept[1].Add(id); fresh != nil && r.Plain {
		var text [top.MaxText + maxPart + 1]byte
		fresh.SetText(appendKey(text[:0], key))
	}
}

// hash has hashes stand for the keys of a rule that is not Plain.
func (r *Rule) hash(keys []top.Key) {
	for i := range keys {
		keys[i].SetText(hashOf(r.secret, keys[i].ID))
	}
}

func hashOf(secret []byte, id uint64) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(le.AppendUint64(nil, id))
	return mac.Sum(nil)[:HashBytes]
}

// Hash is what Known shows of a key, nil while there is no secret.
func (w *Worker) Hash(key []byte) []byte {
	secret := w.Secret()
	if secret == nil {
		return nil
	}
	id, _ := state.StableHash(key)
	return hashOf(secret, id)
}

// keep makes room for the rule, and reports whether there is any.
func (w *Worker) keep(r *Rule, now int64) bool {
	if len(w.kept) == top.MaxRules {
		return false
	}
	if r.secret = w.Secret(); r.secret == nil {
		return false
	}
	r.identify()
	r.kept, r.began = new([2]top.Sketch), [2]int64{now, now}
	w.kept = append(w.kept, r)
	return true
}

// identify gives the rule the number that its lists have. It depends on how keys are
// shown, so that a worker never takes lists that are shown in another way.
func (r *Rule) identify() {
	way := append([]byte("\x00hash\x00"), r.secret...)
	if r.Plain {
		way = []byte("\x00plain")
	}
	r.id, _ = state.StableHash(append(way, r.Name...))
}

// rotate begins a new period of the rule if the running one is over, also because the
// clock was set back.
func (w *Worker) rotate(r *Rule, now int64) {
	switch passed := now - r.began[1]; {
	case passed >= 2*PeriodNs || passed < -PeriodNs:
		*r.kept, r.began = [2]top.Sketch{}, [2]int64{now, now}
	case passed >= PeriodNs:
		r.kept[0], r.kept[1] = r.kept[1], top.Sketch{}
		r.began = [2]int64{r.began[1], now}
	default:
		return
	}
	w.changed = true
}

// list is what this worker knows of the rule.
func (r *Rule) list() top.List { return top.Merge(r.kept[0].List(), r.kept[1].List()) }
