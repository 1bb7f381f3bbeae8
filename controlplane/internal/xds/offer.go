package xds

import "slices"

// stance is what decides which revision one proxy is offered.
type stance struct {
	Acked   uint64   `json:",omitzero"` // the revision it accepted last, 0 for none
	Refused []uint64 `json:",omitzero"` // what it refused
	Since   uint64   `json:",omitzero"` // the newest revision when it subscribed: later ones are not withheld from it
	Misses  int      `json:",omitzero"` // refusals in a row
	id      string   // its node id, "" for any that no canary is for
}

// maxMisses is how many refusals in a row a proxy may give, of the newest revision
// and of its last good one, before it is only offered new revisions.
const maxMisses = 2

// offer says which revision the proxy should hold, 0 for none. The package comment has
// the rules.
func (t *track) offer(p stance) uint64 {
	newest := first(t.of(p))
	withheld := newest.Nacked && !newest.Acked // from proxies that come later
	switch {
	case !p.hasRefused(newest.Number) && (newest.Number > p.Since || !withheld):
		return newest.Number
	case p.Misses >= maxMisses:
		return 0
	}
	return t.lastGood(p)
}

// lastGood is offer without the newest revision's privilege.
func (t *track) lastGood(p stance) uint64 {
	// A proxy that refused something newer than what it runs stays there: what
	// others accepted meanwhile is not proven on it.
	refusedLater := slices.ContainsFunc(p.Refused, func(r uint64) bool { return r > p.Acked })
	stays := refusedLater && !p.hasRefused(p.Acked)
	for r := range t.of(p) {
		if stays && r.Number == p.Acked {
			return p.Acked
		}
	}
	untried := uint64(0)
	for r := range t.of(p) {
		switch {
		case p.hasRefused(r.Number):
		case r.Acked:
			return r.Number
		case !r.Nacked && untried == 0:
			untried = r.Number
		}
	}
	return untried
}

func (p stance) hasRefused(number uint64) bool { return slices.Contains(p.Refused, number) }
