package quotaservice

import (
	"container/list"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"slices"
	"sync"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// definition is a counter as a stream has defined it.
type definition struct {
	quota.Definition               // its windows without a limit.Concurrency
	hold             *limit.Window // the limit.Concurrency; nil = no units of it are held
	blocks           bool          // the last of its windows is a limit.Block
	prefix           []byte        // of what is hashed for a key: see hasher
	broken           bool          // it was refused: asks that name it are answered Unknown
	place            *list.Element // in definitions.used
}

// newDefinition returns a broken definition with the error that says what is wrong.
func newDefinition(domain string, d *quota.Definition) (*definition, error) {
	own := &definition{Definition: *d, prefix: prefix(domain, &d.Counter)}
	err := check(d)
	if err != nil {
		own.broken, own.Windows = true, nil
	}
	own.Windows, own.hold = split(own.Windows)
	last := len(own.Windows) - 1
	own.blocks = last >= 0 && own.Windows[last].Algorithm == limit.Block
	return own, err
}

// split copies windows, and parts those that count from the limit.Concurrency; nil = there is
// none. With one, a fixed window pays what is charged over its limit.
func split(all []limit.Window) (windows []limit.Window, hold *limit.Window) {
	windows = slices.Clone(all)
	last := len(windows) - 1
	if last < 0 || windows[last].Algorithm != limit.Concurrency {
		return windows, nil
	}
	windows, hold = windows[:last], &windows[last]
	for i := range windows {
		if w := &windows[i]; w.IsFixed() && !w.Unlimited {
			w.Pays = w.Limit
		}
	}
	return windows, hold
}

// operation is one on a key of the definition.
func (d *definition) operation(what What, h *hasher, domain string, id [16]byte, owner owner) operation {
	return operation{
		what: what, definition: d, shifted: shifted(d.Windows, id),
		key: h.key(d.prefix, id[:]), domain: domain, owner: owner,
	}
}

// hasher makes the keys under which the store keeps the keys of counters. They say
// nothing about clients to those who do not know the secret.
type hasher struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

func newHasher(secret []byte) *hasher { return &hasher{mac: hmac.New(sha256.New, secret)} }

// key hashes a key after what prefix returned.
func (h *hasher) key(prefix, key []byte) (id [16]byte) {
	h.mac.Reset()
	h.mac.Write(prefix)
	h.mac.Write(key)
	copy(id[:], h.mac.Sum(h.sum[:0]))
	return id
}

// hashers are kept for the next calls: making one costs more than using it.
type hashers struct{ pool sync.Pool }

type keptHasher struct {
	*hasher
	secret *[]byte
}

func (hs *hashers) of(secret *[]byte) *keptHasher {
	if h, ok := hs.pool.Get().(*keptHasher); ok && h.secret == secret {
		return h
	}
	return &keptHasher{newHasher(*secret), secret}
}

// prefix is what all keys of a counter of a domain have in common.
func prefix(domain string, counter *[16]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(domain)))
	return append(append(b, domain...), counter[:]...)
}

// shifted returns the windows as they hold for the key: those with jitter begin a little later.
func shifted(windows []limit.Window, id [16]byte) []limit.Window {
	if !slices.ContainsFunc(windows, func(w limit.Window) bool { return w.Jitter > 0 }) {
		return windows
	}
	own := make([]limit.Window, len(windows))
	for i, w := range windows {
		own[i] = quota.Shifted(w, id)
	}
	return own
}

// check refuses a definition that cannot be decided by.
func check(d *quota.Definition) error {
	for i := range d.Windows {
		var err error
		switch isLast := i == len(d.Windows)-1; {
		case isLast && d.Windows[i].Algorithm == limit.Concurrency:
			err = checkHold(d, &d.Windows[i])
		case d.Windows[i].Algorithm == limit.Block:
			err = checkBlock(d, i)
		default:
			err = checkWindow(d, i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkBlock refuses a limit.Block, or what the definition says beside it.
func checkBlock(d *quota.Definition, i int) error {
	w, last := &d.Windows[i], len(d.Windows)-1
	if d.Windows[last].Algorithm == limit.Concurrency {
		last--
	}
	switch {
	case w.PeriodNs < limit.MinBlockNs || w.PeriodNs > limit.MaxBlockNs || *w != limit.NewBlock(w.PeriodNs, w.Elastic):
		return errors.New("a block is not 1 second to 30 days long, or has more than a limit of 1")
	case i == 0 || i != last:
		return errors.New("a block does not come after all windows that count")
	case d.Lease != quota.LeaseOff:
		return errors.New("a block takes no lease")
	}
	return nil
}

var errUnknownWindow = errors.New("the algorithm of a window is not known: the proxy runs a newer release")

// checkHold refuses a limit.Concurrency, or what the definition says beside it.
func checkHold(d *quota.Definition, hold *limit.Window) error {
	if hold.PeriodNs < limit.MinHoldNs || hold.PeriodNs > limit.MaxHoldNs {
		return errors.New("a hold is not 10 seconds to 1 day long")
	}
	if d.CountDenied || d.Lease != quota.LeaseOff {
		return errors.New("what holds units until their answers takes no count_denied and no lease")
	}
	return nil
}

// checkWindow refuses a window that counts nothing known, or stands in the wrong place.
func checkWindow(d *quota.Definition, i int) error {
	w := &d.Windows[i]
	isBucket := w.Algorithm == limit.TokenBucket
	switch {
	case !slices.Contains(limit.Counting[:], w.Algorithm):
		return errUnknownWindow
	case !w.InRange():
		return errors.New("a window is not 1 ms to 366 days or 1, 2, 3, 4, 6 or 12 months long, or its offset is not less")
	case isBucket && w.Unlimited && (w.Limit > 0 || w.Burst > 0):
		return errors.New("an unlimited bucket has no limit and no burst")
	case w.Units > limit.MaxLog:
		return errors.New("a log remembers at most 512 units")
	case i > 0 && d.Windows[i-1].Compare(*w) >= 0:
		return errors.New("windows are not in order of their period, algorithm, offset, jitter and elastic, " +
			"or one is there twice")
	case d.CountDenied && (isBucket || d.Lease != quota.LeaseOff):
		return errors.New("count_denied takes no token bucket and no lease")
	}
	return nil
}

// definitions are those of one stream.
type definitions struct {
	byID map[uint32]*definition
	used *list.List // of *definition, the least recently used first
}

func newDefinitions() definitions {
	return definitions{byID: map[uint32]*definition{}, used: list.New()}
}

// put keeps a definition in place of one with its number. If there are too many, the least
// recently used one goes.
func (ds *definitions) put(d *definition) {
	if before := ds.byID[d.ID]; before != nil {
		ds.drop(before)
	}
	ds.byID[d.ID] = d
	d.place = ds.used.PushBack(d)
	if ds.used.Len() > quota.MaxDefinitions {
		ds.drop(ds.used.Front().Value.(*definition))
	}
}

func (ds *definitions) drop(d *definition) {
	delete(ds.byID, d.ID)
	ds.used.Remove(d.place)
}

// use returns a definition for an ask; nil if there is none, or it was refused.
func (ds *definitions) use(id uint32) *definition {
	d := ds.byID[id]
	if d == nil || d.broken {
		return nil
	}
	ds.used.MoveToBack(d.place)
	return d
}

// granted is what a return needs to know of a grant.
type granted struct {
	definition *definition
	key        [16]byte // the part's
	counted    counted
	units      uint32 // that may be returned
	atNs       int64
}

// grants are a stream's newest, by number.
type grants struct {
	list   []granted // the oldest first
	number uint32    // of the newest
}

// rememberNs is how long a grant is remembered for returns: a lease and the time
// after which it counts as idle, and some.
const rememberNs = 30 * second

// add remembers a grant, and forgets those that are too old or too many. It returns its number.
func (gs *grants) add(g granted) (number uint32) {
	for len(gs.list) >= quota.MaxReturnable || len(gs.list) > 0 && g.atNs-gs.list[0].atNs > rememberNs {
		gs.list[0] = granted{}
		gs.list = gs.list[1:]
	}
	gs.list = append(gs.list, g)
	gs.number++
	return gs.number
}

// redeem takes a returned grant, and how many of its units go back: at most what it gave, once.
// What a return leaves has been spent, so a second one has nothing to give.
func (gs *grants) redeem(r quota.Return) (g *granted, units uint32) {
	age := gs.number - r.Grant // newest = 0
	if r.Grant == 0 || r.Grant > gs.number || int64(age) >= int64(len(gs.list)) {
		return nil, 0
	}
	g = &gs.list[len(gs.list)-1-int(age)]
	units = min(r.Units, g.units)
	g.units = 0
	return g, units
}

// leased is how many units leases have that have not ended.
func (gs *grants) leased(now int64) (units uint64) {
	for i := range gs.list {
		g := &gs.list[i]
		if g.atNs+g.counted.SpendByNs-g.counted.AtNs > now {
			units += uint64(g.units)
		}
	}
	return units
}
