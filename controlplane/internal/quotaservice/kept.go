package quotaservice

import (
	"container/list"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// share bounds something that all streams take of. A stream takes at most so much. While
// all together take more than total, it takes its equal part of that, and least at most
// where streams are many.
type share struct {
	most, total, least int
	used               int
}

func newShares() (open, unsent, kept share) {
	return share{most: 2048, total: 32 << 10, least: 64}, // parts of asks that have no answer
		share{most: 256 << 10, total: 4 << 20, least: 16 << 10}, // bytes of answers that are not sent
		share{most: 1 << 20, total: 8 << 20, least: 16 << 10} // bytes of definitions and grants
}

// over reports whether a stream that has taken own takes too much.
func (s *share) over(own, streams int) bool {
	return own > s.most || s.used > s.total && own > max(s.total/max(streams, 1), s.least)
}

// take counts what a stream takes, or what it gives back.
func (s *share) take(own *int, n int) {
	*own += n
	s.used += n
}

// About what is kept takes, with what an append leaves free behind it.
const (
	definitionBytes = 400
	windowBytes     = 64
	grantBytes      = 128
	rowBytes        = 56
)

// definition is one that the stream has sent.
type definition struct {
	quota.Definition               // without its Concurrency
	slots            *limit.Window // this, of what is held until an answer is known; nil = nothing is
	prefix           []byte
	broken           bool          // asks that name it are answered Unknown
	recent           *list.Element // of the stream's recent ones

	// The service's lock guards the rest.
	grants  int // that are remembered
	dropped bool
}

func (d *definition) bytes() int { return definitionBytes + windowBytes*len(d.Windows) }

// work is how much there is to do for an ask, as a number of windows.
func (d *definition) work() (n int) {
	for i := range d.Windows {
		n += 1 + int(d.Windows[i].Units)/32
	}
	return n
}

// newDefinition says what is wrong with a definition, which then is broken.
func newDefinition(domain string, d *quota.Definition) (*definition, error) {
	own, err := &definition{Definition: *d, prefix: prefix(domain, &d.Counter)}, check(d)
	if err != nil {
		own.broken, own.Windows = true, nil
	}
	own.Windows, own.slots = split(own.Windows)
	return own, err
}

// operation is one on a key of the definition.
func (d *definition) operation(what What, h *hasher, domain string, id [16]byte, owner owner) operation {
	return operation{what: what, definition: d, windows: shifted(d.Windows, id), key: h.key(d.prefix, id[:]), domain: domain, owner: owner}
}

// granted is what a return needs to know of a grant.
type granted struct {
	definition *definition
	key        [16]byte // the part's
	charge     charge
	units      uint32 // that may be returned
	atNs       int64
}

func (g *granted) bytes() int { return grantBytes + 8*len(g.charge.Ends) }

// define keeps a definition, in place of those that were used least recently if there
// are too many.
func (st *Stream) define(d *quota.Definition) {
	s := st.service
	own, err := newDefinition(st.domain.name, d)
	if err != nil {
		st.refused("definition refused", err)
	}
	st.work = max(st.work, own.work())
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := st.definitions[d.ID]; before != nil {
		st.drop(before)
	}
	own.recent = st.recent.PushBack(own)
	st.definitions[d.ID] = own
	s.kept.take(&st.kept, own.bytes())
	st.forget(0)
	for n := st.recent.Len(); n > quota.MaxDefinitions || n > 1 && s.kept.over(st.kept, len(s.streams)); n-- {
		st.drop(st.recent.Front().Value.(*definition))
	}
}

// split returns windows that count, and what limits what is held until answers are known; nil
// for nothing. Then a fixed window pays what is charged over its limit.
func split(all []limit.Window) (windows []limit.Window, slots *limit.Window) {
	windows = slices.Clone(all)
	last := len(windows) - 1
	if last < 0 || windows[last].Algorithm != limit.Concurrency {
		return windows, nil
	}
	windows, slots = windows[:last], &windows[last]
	for i := range windows {
		if w := &windows[i]; w.IsFixed() && !w.Unlimited {
			w.Pays = w.Limit
		}
	}
	return windows, slots
}

// drop forgets a definition. Its memory is free when no grant of it is remembered.
func (st *Stream) drop(d *definition) {
	delete(st.definitions, d.ID)
	st.recent.Remove(d.recent)
	d.dropped = true
	st.free(d)
}

func (st *Stream) free(d *definition) {
	if d.dropped && d.grants == 0 {
		st.service.kept.take(&st.kept, -d.bytes())
	}
}

// remember notes a grant for its return, and forgets old ones.
func (st *Stream) remember(o *operation) uint32 {
	s := st.service
	now := s.o.Clock.NowNs()
	g := granted{o.definition, o.part.Key, o.charged, o.units, now}
	o.grants++
	s.kept.take(&st.kept, g.bytes())
	st.forget(now)
	st.grants = append(st.grants, g)
	st.number++
	return st.number
}

// forget makes room for a grant, and forgets those that are too old by now.
func (st *Stream) forget(now int64) {
	s := st.service
	for len(st.grants) > 0 {
		g := &st.grants[0]
		if len(st.grants) < quota.MaxGrants && now-g.atNs <= rememberNs && !s.kept.over(st.kept, len(s.streams)) {
			return
		}
		s.kept.take(&st.kept, -g.bytes())
		g.definition.grants--
		st.free(g.definition)
		st.grants[0] = granted{}
		st.grants = st.grants[1:]
	}
}

// shifted returns the windows as they hold for the key.
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
