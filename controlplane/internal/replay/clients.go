package replay

import (
	"cmp"
	"hash/maphash"
	"maps"
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	// MaxClients bounds the keys of all rules of a policy that are told apart.
	MaxClients = 4_000_000
	// maxKeyBytes bounds the texts of keys that are denied. Beyond them are clients that
	// first are denied after a million others, and do not get into a table.
	maxKeyBytes = 256 << 20
)

// clients is what is known of each key of a rule. A key is known by a hash of 64 bits:
// of four million keys, two are taken for one with a chance of one in two million.
type clients struct {
	seed    maphash.Seed
	index   map[uint64]uint32
	all     []client
	periods []*periods // by limit
	left    *room
}

// room is how many more clients of all rules are told apart, and bytes of keys kept.
type room struct{ clients, keyBytes int }

type client struct {
	requests, denied uint32
	onlyHere         [inShadow + 1]uint32 // requests by kind, denied or inShadow; see decision.onlyHere
	key              string               // of one that was denied
}

// periods are the aligned periods of one limit, and what each client used in them.
type periods struct {
	window   limit.Window
	lengthNs int64   // of the shortest period
	uses     Uses    // of periods that are over
	number   uint32  // of the newest period
	active   int64   // clients in it
	peak     int64   // clients in one period, at most
	tallies  []tally // by client
}

// tally is what a client has used in its newest period, and at most in any.
type tally struct {
	number     uint32 // of the period
	used, most uint32
}

func newClients(rule *policy.Rule, left *room) *clients {
	c := &clients{seed: maphash.MakeSeed(), index: map[uint64]uint32{}, left: left}
	isKnown := rule.Cost.IsFixed() && len(rule.Costs) == 0 && !rule.Holds() // what a request costs, without the filter
	if !isKnown {
		return c
	}
	for i := range rule.Limits {
		w := rule.Limits[i].Window
		p := &periods{window: w, lengthNs: w.PeriodNs, uses: Uses{}}
		if w.Algorithm == limit.Calendar {
			p.lengthNs = w.Months() * limit.MaxOffsetNs
		}
		c.periods = append(c.periods, p)
	}
	return c
}

// add returns the number of a key's client, which may be a new one. False: there are too many.
func (c *clients) add(key []byte) (uint32, bool) {
	hash := maphash.Bytes(c.seed, key)
	i, known := c.index[hash]
	if known {
		return i, true
	}
	if c.left.clients == 0 {
		return 0, false
	}
	c.left.clients--
	i = uint32(len(c.all))
	c.index[hash] = i
	c.all = append(c.all, client{})
	for _, p := range c.periods {
		p.tallies = append(p.tallies, tally{})
	}
	return i, true
}

// countUnits counts units of a client at an instant.
func (c *clients) countUnits(i uint32, ns int64, units uint32) {
	for _, p := range c.periods {
		start, _ := p.window.Span(ns)
		number := uint32(start/p.lengthNs) + 1 // 0 = no period
		t := &p.tallies[i]
		if t.number != number {
			p.endPeriod(t)
			p.begin(number)
			t.number = number
		}
		t.used += min(units, math.MaxUint32-t.used)
		t.most = max(t.most, t.used)
	}
}

// endPeriod ends a client's newest period.
func (p *periods) endPeriod(t *tally) {
	if t.used > 0 {
		p.uses[t.used]++
		t.used = 0
	}
}

// begin counts a client that begins a period.
func (p *periods) begin(number uint32) {
	if p.number != number {
		p.number = number
		p.active = 0
	}
	p.active++
	p.peak = max(p.peak, p.active)
}

// endPeriods ends the periods under way, and returns by limit what was used in periods.
func (c *clients) endPeriods() (all []Uses) {
	for _, p := range c.periods {
		for i := range p.tallies {
			p.endPeriod(&p.tallies[i])
		}
		all = append(all, p.uses)
	}
	return all
}

// fullest counts what each client has used in its fullest period.
func (p *periods) fullest() Uses {
	all := Uses{}
	for _, t := range p.tallies {
		all[t.most]++
	}
	return all
}

// topClients is how many of a rule's clients are reported.
const topClients = 10

// count counts a request of a client. If it is denied, the client gets its key, if there is room.
func (c *clients) count(i uint32, key []byte, kind kind, onlyHere bool) {
	found := &c.all[i]
	found.requests++
	if kind == allowed || kind == deniedByOthers {
		return
	}
	if found.key == "" && len(key) <= c.left.keyBytes {
		c.left.keyBytes -= len(key)
		found.key = string(key)
	}
	found.denied++
	if onlyHere {
		found.onlyHere[kind]++
	}
}

// sum adds up a count of the clients, by their numbers. It returns how many clients have any, and the
// clients that have most; of equal ones those that came first.
func (c *clients) sum(key []policy.KeyPart, count func(i uint32) uint32) (a OnlyHere) {
	var having []uint32
	for i := range uint32(len(c.all)) {
		if n := count(i); n > 0 {
			a.Requests += int64(n)
			having = append(having, i)
		}
	}
	a.Clients = int64(len(having))
	slices.SortStableFunc(having, func(i, j uint32) int { return cmp.Compare(count(j), count(i)) })
	for _, i := range having {
		if found := &c.all[i]; found.key != "" && len(a.Top) < topClients {
			shown := Client{Key: reportedKey(key, found.key, i), Requests: int64(found.requests), Denied: int64(count(i))}
			a.Top = append(a.Top, shown)
		}
	}
	return a
}

// Uses counts how many times each number of units was used. Numbers that differ are
// at most as many as the square root of twice all units.
type Uses map[uint32]int64

// Sum returns how many times units were used.
func (u Uses) Sum() (n int64) {
	for _, times := range u {
		n += times
	}
	return n
}

// units returns how many units were used.
func (u Uses) units() (n int64) {
	for units, times := range u {
		n += int64(units) * times
	}
	return n
}

// upTo returns the uses of at most so many units.
func (u Uses) upTo(most uint32) Uses {
	kept := Uses{}
	for units, times := range u {
		if units <= most {
			kept[units] = times
		}
	}
	return kept
}

// Quantile returns the least number of units that a share of all uses does not exceed.
func (u Uses) Quantile(share float64) uint32 {
	var seen int64
	var last uint32
	sum := u.Sum()
	for _, units := range slices.Sorted(maps.Keys(u)) {
		last = units
		seen += u[units]
		if float64(seen) >= share*float64(sum) {
			break
		}
	}
	return last
}

// Distribution sums up the uses.
func (u Uses) Distribution() Distribution {
	return Distribution{
		Periods: u.Sum(), P50: u.Quantile(0.5), P90: u.Quantile(0.9), P99: u.Quantile(0.99),
		P999: u.Quantile(0.999), Max: u.Quantile(1),
	}
}
