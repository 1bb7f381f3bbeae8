package fleet

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms
)

// Config is one run.
type Config struct {
	Limit     string  // as in a policy: 100/1s
	PerSecond float64 // requests of all proxies and keys together
	Proxies   int
	Workers   int // of a proxy, 1 if 0
	Keys      int // 1 = all requests count for one key; more: Zipf 1.1
	Said      int // requests say the limit: of each key it is another one, by so much
	Pattern   Pattern
	LastNs    int64   // how long
	TripNs    int64   // to the service and back
	Loss      float64 // share of messages with which their stream breaks
	Lease     string  // auto, off or a number
	Seed      uint64
}

// Pattern says which proxy gets a request at an instant.
type Pattern func(c *Config, at int64, dice *rand.Rand) int

// Even spreads requests over all proxies.
func Even(c *Config, _ int64, dice *rand.Rand) int { return dice.IntN(c.Proxies) }

// NinetyTen sends nine tenths of the requests to a tenth of the proxies.
func NinetyTen(c *Config, _ int64, dice *rand.Rand) int {
	hot := max(c.Proxies/10, 1)
	if dice.IntN(10) > 0 || hot == c.Proxies {
		return dice.IntN(hot)
	}
	return hot + dice.IntN(c.Proxies-hot)
}

// Moving sends nearly all requests to one proxy, another one each second.
func Moving(c *Config, at int64, dice *rand.Rand) int {
	if dice.IntN(20) == 0 {
		return dice.IntN(c.Proxies)
	}
	return int(at/second) % c.Proxies
}

// Idle sends all requests to a tenth of the proxies.
func Idle(c *Config, _ int64, dice *rand.Rand) int { return dice.IntN(max(c.Proxies/10, 1)) }

// Bursts lets one proxy after the other speak, for 50 ms each.
func Bursts(c *Config, at int64, _ *rand.Rand) int { return int(at/(50*ms)) % c.Proxies }

// Result is what a run has shown.
type Result struct {
	Requests, Admitted int
	Possible           int // what exact limiting would have admitted
	Over               int // the most that any window admitted beyond its limit
	Asks               int
	Waiters            int // requests that waited
	Alone              int // requests that were decided without the service
	WaitP99, TripNs    int64
}

// Used is the share of what was possible that was admitted.
func (r *Result) Used() float64 { return float64(r.Admitted) / float64(max(r.Possible, 1)) }

// AsksEach is how many asks there were for each request.
func (r *Result) AsksEach() float64 { return float64(r.Asks) / float64(max(r.Requests, 1)) }

// Waited is the share of requests that waited.
func (r *Result) Waited() float64 { return float64(r.Waiters) / float64(max(r.Requests, 1)) }

// event is something that happens at an instant; those of one instant happen in the
// order in which they were planned.
type event struct {
	at  int64
	seq int
	do  func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(e any)   { *a = append(*a, e.(event)) }
func (a *agenda) Pop() any {
	old := *a
	e := old[len(old)-1]
	*a = old[:len(old)-1]
	return e
}

// world is a run under way.
type world struct {
	t       testing.TB
	config  *Config
	dice    *rand.Rand
	now     int64
	seq     int
	agenda  agenda
	service *quotatest.Service
	asking  map[*quotatest.Stream]*proxy
	proxies []*proxy // their workers, one proxy's after the other's
	result  Result
	waits   []int64
	hits    map[window]int
	wanted  map[window]int
}

// window is one window of one key.
type window struct {
	key   int
	start int64
}

// proxy is one worker of a proxy.
type proxy struct {
	world  *world
	host   *hosttest.Proxy
	engine *engine.Engine
	client *lease.Client
	stream *quotatest.Stream
	random *rand.Rand
	ticks  int64 // when the next tick is due
	next   uint32
	since  map[uint32]pending
}

type pending struct {
	key int
	at  int64
}

// Run lets the fleet live through a config.
func Run(t testing.TB, c Config) Result {
	t.Helper()
	w := &world{
		t: t, config: &c, dice: rand.New(rand.NewPCG(c.Seed, 1)), now: 42 * 24 * 3600 * second,
		hits: map[window]int{}, wanted: map[window]int{}, asking: map[*quotatest.Stream]*proxy{},
	}
	w.service = quotatest.New(t, func() int64 { return w.now })
	w.service.Ready = w.answered
	most := c.Lease
	if most == "" {
		most = "auto"
	}
	limit := fmt.Sprintf("%q", c.Limit)
	if c.Said > 0 {
		requests, per, _ := strings.Cut(c.Limit, "/")
		limit = fmt.Sprintf(`{"requests":{"header":"l","trusted":true,"default":%s,"max":1000000},"per":%q}`, requests, per)
	}
	rules := fmt.Sprintf(`{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":[%s],"on_unavailable":"deny","lease":%s}`,
		limit, map[bool]string{true: most, false: `"` + most + `"`}[most[0] >= '0' && most[0] <= '9'])
	c.Workers = max(c.Workers, 1)
	var host *hosttest.Proxy
	for i := range c.Proxies * c.Workers {
		if i%c.Workers == 0 {
			host = hosttest.New()
		}
		p := &proxy{world: w, host: host, random: rand.New(rand.NewPCG(c.Seed, uint64(i)+2)), since: map[uint32]pending{}}
		p.host.Clock = w.now
		p.engine = engine.New(hosttest.Policy(t, rules), p.host, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
		p.engine.Leases.TimeoutNs = 100 * ms
		p.client = lease.NewClient(p, p.engine.Leases)
		w.proxies = append(w.proxies, p)
		first := second * int64(i) / int64(c.Proxies*c.Workers)
		p.ticks = w.now + first
		w.plan(first, p.tick)
	}
	w.live()
	return w.sum()
}

func (w *world) plan(after int64, do func()) {
	w.seq++
	heap.Push(&w.agenda, event{w.now + after, w.seq, do})
}

// live makes the requests and lets happen what follows from them.
func (w *world) live() {
	c := w.config
	var keys *rand.Zipf
	if c.Keys > 1 {
		keys = rand.NewZipf(w.dice, 1.1, 1, uint64(c.Keys-1))
	}
	end := w.now + c.LastNs
	next := w.now
	for {
		next += int64(w.dice.ExpFloat64() / c.PerSecond * float64(second))
		if next >= end {
			break
		}
		w.until(next)
		key := 0
		if keys != nil {
			key = int(keys.Uint64())
		}
		w.proxies[c.Pattern(c, w.now, w.dice)*c.Workers+w.dice.IntN(c.Workers)].request(key)
	}
	w.until(end + second)
}

func (w *world) until(at int64) {
	for len(w.agenda) > 0 && w.agenda[0].at <= at {
		e := heap.Pop(&w.agenda).(event)
		w.now = e.at
		w.service.Due()
		e.do()
	}
	w.now = at
	w.service.Due()
}

func (p *proxy) request(key int) {
	p.next++
	w := p.world
	w.result.Requests++
	w.wanted[p.windowOf(key)]++
	p.since[p.next] = pending{key, w.now}
	p.decide(p.next)
	p.replan()
}

func (p *proxy) windowOf(key int) window {
	win := &p.engine.Leases.Definitions[0].Windows[0]
	return window{key, win.End(p.world.now)}
}

// decide begins a request.
func (p *proxy) decide(context uint32) {
	w, r := p.world, p.since[context]
	p.host.Clock = w.now
	p.host.Headers = map[string][]string{"u": {fmt.Sprint(r.key)}}
	if w.config.Said > 0 {
		p.host.Headers["l"] = []string{fmt.Sprint(w.limitOf(r.key))}
	}
	p.host.Calls = p.host.Calls[:0]
	p.respond(context, p.engine.Decide(), true)
}

// respond notes a verdict, and reports whether the request need not wait.
func (p *proxy) respond(context uint32, v *decide.Verdict, first bool) bool {
	w, r := p.world, p.since[context]
	if v.Pending {
		p.engine.Keep(v)
		p.client.Wait(context, v, w.now)
		return false
	}
	delete(p.since, context)
	if !first {
		w.result.Waiters++
		w.waits = append(w.waits, w.now-r.at)
	}
	if v.Allowed {
		w.result.Admitted++
		w.hits[p.windowOf(r.key)]++
	} else if v.Subjects[0].Outcome == decide.Silent {
		w.result.Alone++
	}
	if p.engine.Leases.AsksAhead() {
		p.client.AskAhead(w.now)
	}
	return true
}

// tick does what a tick does, and plans the next one.
func (p *proxy) tick() {
	w := p.world
	if w.now < p.ticks {
		return // planned before an earlier one was
	}
	p.host.Clock = w.now
	p.client.Tick(w.now)
	p.ticks = math.MaxInt64
	p.replan()
}

// replan makes the next tick as early as the client needs it.
func (p *proxy) replan() {
	after := int64(p.client.Period()) * ms
	if at := p.world.now + after; at < p.ticks {
		p.ticks = at
		p.world.plan(after, p.tick)
	}
}

func (p *proxy) Resume(context uint32, v *decide.Verdict) bool {
	p.host.Clock = p.world.now
	p.engine.Resume(v)
	return p.respond(context, v, false)
}

func (p *proxy) Free(v *decide.Verdict) { p.engine.Free(v) }

func (p *proxy) Random() uint32 { return p.random.Uint32() }

func (p *proxy) Open() bool {
	p.stream = p.world.service.Open(p.world.t)
	p.world.asking[p.stream] = p
	return true
}

func (p *proxy) Cancel() { p.stream = nil }

// Send takes a message to the service.
func (p *proxy) Send(message []byte) bool {
	w, st := p.world, p.stream
	var m quota.Asks
	if err := m.Decode(message); err != nil {
		w.t.Fatal(err)
	}
	w.result.Asks += len(m.Asks)
	lost := w.dice.Float64() < w.config.Loss
	message = slices.Clone(message)
	w.plan(w.config.TripNs/2, func() {
		if lost {
			p.broken(st)
		} else if err := st.Receive(message); err != nil {
			w.t.Fatal(err)
		}
	})
	return true
}

// answered takes the service's answers back.
func (w *world) answered(st *quotatest.Stream) {
	p, lost := w.asking[st], w.dice.Float64() < w.config.Loss
	w.plan(w.config.TripNs/2, func() {
		for answer := st.Next(); answer != nil; answer = st.Next() {
			if lost {
				p.broken(st)
			} else {
				p.receive(st, answer)
			}
		}
	})
}

func (p *proxy) receive(st *quotatest.Stream, answer []byte) {
	if p.stream != st {
		return
	}
	p.host.Clock = p.world.now
	if err := p.client.Receive(answer, p.world.now); err != nil {
		p.world.t.Fatal(err)
	}
	p.replan()
}

func (p *proxy) broken(st *quotatest.Stream) {
	if p.stream == st {
		p.stream = nil
		p.host.Clock = p.world.now
		p.client.Closed(p.world.now)
		p.replan()
	}
}

// limitOf is a key's limit: what the policy says, or its requests.
func (w *world) limitOf(key int) int {
	return int(w.proxies[0].engine.Leases.Definitions[0].Windows[0].Limit) + key*w.config.Said
}

func (w *world) sum() Result {
	r := w.result
	r.TripNs = w.config.TripNs
	for win, wanted := range w.wanted {
		limit := w.limitOf(win.key)
		r.Possible += min(wanted, limit)
		r.Over = max(r.Over, w.hits[win]-limit)
	}
	slices.Sort(w.waits)
	if n := len(w.waits); n > 0 {
		r.WaitP99 = w.waits[n*99/100]
	}
	return r
}
