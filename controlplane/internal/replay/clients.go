package replay

import (
	"hash/maphash"
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// MaxClients bounds the keys of all rules of a policy that are told apart.
const MaxClients = 4_000_000

// clients is what is known of each key of a rule. A key is known by a hash of 64 bits:
// of four million keys, two are taken for one with a chance of one in two million.
type clients struct {
	seed    maphash.Seed
	index   map[uint64]uint32
	all     []client
	windows []window // of each client as many as periods
	periods []period
	left    *int64 // how many more clients there may be, of all rules
}

type client struct {
	requests, denied uint32
	alone            [2]uint32 // by kind
}

// window is what a client has used in its newest period, and at most in one.
type window struct{ number, used, most uint32 }

// period is of one limit.
type period struct {
	window   limit.Window
	lengthNs int64 // of the shortest one
	uses     Uses
	number   uint32 // of the newest one
	active   int64  // clients in it
	peak     int64  // clients in one, at most
}

func newClients(rule *policy.Rule, left *int64) *clients {
	c := &clients{seed: maphash.MakeSeed(), index: map[uint64]uint32{}, left: left}
	if rule.Cost.Header == "" && rule.Cost.Query == "" && len(rule.Costs) == 0 {
		for i := range rule.Limits {
			w := rule.Limits[i].Window
			p := period{window: w, lengthNs: w.PeriodNs, uses: Uses{}}
			if w.Algorithm == limit.Calendar {
				p.lengthNs = w.Months() * limit.MaxOffsetNs
			}
			c.periods = append(c.periods, p)
		}
	}
	return c
}

// find returns the number of a key's client; false: there are too many.
func (c *clients) find(key []byte) (uint32, bool) {
	hash := maphash.Bytes(c.seed, key)
	i, known := c.index[hash]
	if known {
		return i, true
	}
	if *c.left == 0 {
		return 0, false
	}
	*c.left--
	i = uint32(len(c.all))
	c.index[hash] = i
	c.all = append(c.all, client{})
	c.windows = append(c.windows, make([]window, len(c.periods))...)
	return i, true
}

// use counts units of a client at an instant.
func (c *clients) use(i uint32, ns int64, units uint32) {
	for j := range c.periods {
		p := &c.periods[j]
		start, _ := p.window.Span(ns)
		number := uint32(start/p.lengthNs) + 1 // 0 is none
		w := &c.windows[int(i)*len(c.periods)+j]
		if w.number != number {
			if w.used > 0 {
				p.uses[w.used]++
			}
			*w = window{number: number, most: w.most}
			if p.number != number {
				p.number, p.active = number, 0
			}
			p.active++
			p.peak = max(p.peak, p.active)
		}
		w.used += min(units, math.MaxUint32-w.used)
		w.most = max(w.most, w.used)
	}
}

// uses ends the periods under way, and returns what was used in all.
func (c *clients) uses() []Uses {
	all := make([]Uses, len(c.periods))
	for i := range c.windows {
		if w := &c.windows[i]; w.used > 0 {
			c.periods[i%len(c.periods)].uses[w.used]++
			w.used = 0
		}
	}
	for j := range c.periods {
		all[j] = c.periods[j].uses
	}
	return all
}

// most counts what each client has used at most in one period of the j-th limit.
func (c *clients) most(j int) Uses {
	all := Uses{}
	for i := j; i < len(c.windows); i += len(c.periods) {
		all[c.windows[i].most]++
	}
	return all
}

// heavy keeps the clients that count most, with their keys.
type heavy struct {
	timeline *timeline
	clients  map[uint32]*heavyClient
	most     int    // clients
	least    uint32 // no client here has counted less
}

type heavyClient struct {
	key    string
	count  uint32
	before uint32 // counted before the client came here
	strip  *series
}

// How many clients of a rule are watched, and of all rules unless there are very many;
// and how many of a rule's are reported.
const (
	watchedClients    = 256
	allWatchedClients = 1 << 16
	topClients        = 10
)

// newHeavy returns one of so many rules'.
func newHeavy(t *timeline, rules int) *heavy {
	most := max(min(watchedClients, allWatchedClients/rules), topClients)
	return &heavy{timeline: t, clients: map[uint32]*heavyClient{}, most: most}
}

// count says that a client has counted so often, now once more.
func (h *heavy) count(i, count uint32, key []byte, at int) {
	c := h.clients[i]
	if c == nil {
		if len(h.clients) == h.most && !h.makeRoom(count) {
			return
		}
		c = &heavyClient{key: string(key), before: count - 1, strip: h.timeline.new()}
		h.clients[i] = c
	}
	c.count = count
	c.strip.add(at, 1)
}

// makeRoom drops the client that has counted least, if that is less than count.
func (h *heavy) makeRoom(count uint32) bool {
	if count <= h.least {
		return false
	}
	drop, least := uint32(0), ^uint32(0)
	for i, c := range h.clients {
		if c.count < least || c.count == least && i > drop {
			drop, least = i, c.count
		}
	}
	if h.least = least; count <= least {
		return false
	}
	h.timeline.drop(h.clients[drop].strip)
	delete(h.clients, drop)
	return true
}

// top returns those that have counted most, the first ones of equals that came first.
func (h *heavy) top(key []policy.KeyPart, all []client) []Client {
	var numbers []uint32
	for i := range h.clients {
		numbers = append(numbers, i)
	}
	slices.SortFunc(numbers, func(a, b uint32) int {
		if x, y := h.clients[a].count, h.clients[b].count; x != y {
			return int(y) - int(x)
		}
		return int(a) - int(b)
	})
	top := []Client{}
	for _, i := range numbers[:min(len(numbers), topClients)] {
		c := h.clients[i]
		top = append(top, Client{
			Key: reportedKey(key, c.key, i), Requests: int64(all[i].requests), Denied: int64(c.count),
			Strip: h.timeline.whole(c.strip), Before: int64(c.before),
		})
	}
	return top
}
