package lease_test

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/talk"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// load is how requests come to a fleet, and how its messages go.
type load struct {
	limit     string  // as in a policy: 100/1s
	perSecond float64 // requests of all proxies and keys together
	lastNs    int64
	proxies   int // 3 if 0
	workers   int // of a proxy, 4 if 0
	keys      int // more than 1: Zipf 1.1
	requested int // requests say the limit: of each key it is another one, by so much
	pattern   pattern
	tripNs    int64   // to the service and back, 1 ms if 0
	loss      float64 // share of messages with which their stream breaks
	lease     string  // auto if empty
}

// pattern says which proxy gets a request at an instant.
type pattern func(l *load, at int64, dice *rand.Rand) int

func even(l *load, _ int64, dice *rand.Rand) int { return dice.IntN(l.proxies) }

// ninetyTen sends nine tenths of the requests to a tenth of the proxies.
func ninetyTen(l *load, _ int64, dice *rand.Rand) int {
	hot := max(l.proxies/10, 1)
	if dice.IntN(10) > 0 || hot == l.proxies {
		return dice.IntN(hot)
	}
	return hot + dice.IntN(l.proxies-hot)
}

// moving sends nearly all requests to one proxy, another one each second.
func moving(l *load, at int64, dice *rand.Rand) int {
	if dice.IntN(20) == 0 {
		return dice.IntN(l.proxies)
	}
	return int(at/second) % l.proxies
}

// idle sends all requests to a tenth of the proxies.
func idle(l *load, _ int64, dice *rand.Rand) int { return dice.IntN(max(l.proxies/10, 1)) }

// bursts lets one proxy after the other speak, for 50 ms each.
func bursts(l *load, at int64, _ *rand.Rand) int { return int(at/(50*ms)) % l.proxies }

// fleet is many proxies under one limit, in virtual time: their workers, and the service.
// Demand and losses are made from a seed.
type fleet struct {
	load
	t       *testing.T
	dice    *rand.Rand
	now     int64
	agenda  []event // in order
	service *quotatest.Service
	asking  map[*quotatest.Stream]*member
	members []*member // one proxy's after the other's

	requests, admitted, asks int
	alone                    int     // requests that were decided without the service
	waits                    []int64 // of requests that waited
	hits, wanted             map[window]int
}

type event struct {
	at int64
	do func()
}

// window is one window of one key.
type window struct {
	key   int
	endNs int64
}

// member is one worker of a fleet.
type member struct {
	*worker
	fleet  *fleet
	stream *quotatest.Stream
	ticks  int64            // when the next tick is due
	since  map[uint32]int64 // of requests that wait
}

// live lets a fleet live through a load.
func (l load) live(t *testing.T) *fleet {
	t.Helper()
	l.proxies, l.workers = cmp.Or(l.proxies, 3), cmp.Or(l.workers, 4)
	l.tripNs = cmp.Or(l.tripNs, ms)
	f := &fleet{
		load: l, t: t, dice: rand.New(rand.NewPCG(1, 1)), now: 42 * 24 * 3600 * second,
		hits: map[window]int{}, wanted: map[window]int{}, asking: map[*quotatest.Stream]*member{},
	}
	f.service = quotatest.New(t, func() int64 { return f.now })
	f.service.Ready = f.answered
	limit := fmt.Sprintf("%q", l.limit)
	if l.requested > 0 {
		requests, per, _ := strings.Cut(l.limit, "/")
		const format = `{"requests":{"header":"v","trusted":true,"default":%s,"max":1000000},"per":%q}`
		limit = fmt.Sprintf(format, requests, per)
	}
	rules := fmt.Sprintf(`{"name":"r",`+byUser+`,"limits":[%s],"on_unavailable":"deny","lease":%q}`,
		limit, cmp.Or(l.lease, "auto"))
	var host *hosttest.Proxy
	for i := range l.proxies * l.workers {
		if i%l.workers == 0 {
			host = hosttest.New()
			host.Clock = f.now
		}
		m := &member{worker: newWorker(t, host, rules, uint32(i)), fleet: f, since: map[uint32]int64{}}
		m.client = talk.NewClient(m, m.engine.Cluster, 100*ms)
		m.onDecided = m.noted
		f.members = append(f.members, m)
		first := second * int64(i) / int64(l.proxies*l.workers)
		m.ticks = f.now + first
		f.plan(first, m.tick)
	}
	f.demand()
	slices.Sort(f.waits)
	return f
}

func (f *fleet) plan(after int64, do func()) {
	at := f.now + after
	i, _ := slices.BinarySearchFunc(f.agenda, at+1, func(e event, at int64) int { return cmp.Compare(e.at, at) })
	f.agenda = slices.Insert(f.agenda, i, event{at, do})
}

// demand makes the requests and lets happen what follows from them.
func (f *fleet) demand() {
	zipf := rand.NewZipf(f.dice, 1.1, 1, uint64(max(f.keys, 1)-1))
	end := f.now + f.lastNs
	for next := f.now; ; {
		next += int64(f.dice.ExpFloat64() / f.perSecond * float64(second))
		if next >= end {
			break
		}
		f.until(next)
		key := 0
		if f.keys > 1 {
			key = int(zipf.Uint64())
		}
		f.members[f.pattern(&f.load, f.now, f.dice)*f.workers+f.dice.IntN(f.workers)].request(key)
	}
	f.until(end + second)
}

func (f *fleet) until(at int64) {
	for len(f.agenda) > 0 && f.agenda[0].at <= at {
		e := f.agenda[0]
		f.agenda = f.agenda[1:]
		f.now = e.at
		f.service.Due()
		e.do()
	}
	f.now = at
	f.service.Due()
}

// enter begins a callback, and returns what ends it: it plans the next tick as early as the
// client needs it.
func (m *member) enter() (leave func()) {
	f := m.fleet
	m.proxy.Clock, m.proxy.Calls = f.now, m.proxy.Calls[:0]
	return func() {
		after := int64(m.client.PeriodMs()) * ms
		if at := f.now + after; at < m.ticks {
			m.ticks = at
			f.plan(after, m.tick)
		}
	}
}

func (m *member) request(key int) {
	defer m.enter()()
	f, user := m.fleet, fmt.Sprint(key)
	if f.requested > 0 {
		user = fmt.Sprint(key, " ", f.limitOf(key))
	}
	f.requests++
	f.wanted[m.windowOf(key)]++
	if id := m.worker.request(user); !m.isDecided(id) {
		m.since[id] = f.now
	}
}

func (m *member) windowOf(key int) window {
	return window{key, m.engine.Cluster.Definitions()[0].Windows[0].End(m.fleet.now)}
}

// limitOf is a key's limit: what the policy says, or its requests.
func (f *fleet) limitOf(key int) int {
	return int(f.members[0].engine.Cluster.Definitions()[0].Windows[0].Limit) + key*f.requested
}

// noted counts a verdict.
func (m *member) noted(id uint32, v *decide.Verdict) {
	f := m.fleet
	if at, waited := m.since[id]; waited {
		f.waits = append(f.waits, f.now-at)
		delete(m.since, id)
	}
	if v.Allowed {
		var key int
		_, err := fmt.Sscan(m.users[id], &key)
		require.NoError(f.t, err)
		f.admitted++
		f.hits[m.windowOf(key)]++
	} else if v.Subjects[0].Reason() == result.ReasonOnUnavailable {
		f.alone++
	}
}

func (m *member) tick() {
	if m.fleet.now < m.ticks {
		return // planned before an earlier one was
	}
	defer m.enter()()
	m.ticks = math.MaxInt64
	m.worker.tick()
}

func (m *member) Open() bool {
	m.stream = m.fleet.service.Open(m.t)
	m.fleet.asking[m.stream] = m
	return true
}

func (m *member) Cancel() { m.stream = nil }

// Send takes a message to the service.
func (m *member) Send(message []byte) bool {
	f, st := m.fleet, m.stream
	var asks quota.Asks
	require.NoError(f.t, asks.Decode(message))
	f.asks += len(asks.Asks)
	lost := f.dice.Float64() < f.loss
	message = slices.Clone(message)
	f.plan(f.tripNs/2, func() {
		if lost {
			m.broken(st)
		} else {
			require.NoError(f.t, st.Receive(message))
		}
	})
	return true
}

// answered takes the service's answers back.
func (f *fleet) answered(st *quotatest.Stream) {
	m, lost := f.asking[st], f.dice.Float64() < f.loss
	f.plan(f.tripNs/2, func() {
		for answer := st.Next(); answer != nil; answer = st.Next() {
			if lost {
				m.broken(st)
			} else if m.stream == st {
				leave := m.enter()
				m.receive(answer)
				leave()
			}
		}
	})
}

func (m *member) broken(st *quotatest.Stream) {
	if m.stream == st {
		defer m.enter()()
		m.stream = nil
		m.client.StreamEnded(m.fleet.now)
	}
}

// used is the share of what exact limiting would have admitted that was admitted, and over
// the most that any window admitted beyond its limit.
func (f *fleet) used() (share float64, over int) {
	possible := 0
	for w, wanted := range f.wanted {
		limit := f.limitOf(w.key)
		possible += min(wanted, limit)
		over = max(over, f.hits[w]-limit)
	}
	return float64(f.admitted) / float64(max(possible, 1)), over
}

func (f *fleet) asksEach() float64 { return float64(f.asks) / float64(max(f.requests, 1)) }
func (f *fleet) waited() float64   { return float64(len(f.waits)) / float64(max(f.requests, 1)) }

func (f *fleet) waitP99() int64 {
	if len(f.waits) == 0 {
		return 0
	}
	return f.waits[len(f.waits)*99/100]
}

var long = flag.Bool("long", false, "longer runs of fleets")

const (
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// situations are how demand comes and messages go.
var situations = []struct {
	name string
	set  func(l *load)
	used float64 // at least, of the limit
	lost bool    // messages are lost: the service may be silent for a while
}{
	{"even", func(l *load) { l.pattern = even }, 0.99, false},
	{"90-10", func(l *load) { l.pattern = ninetyTen }, 0.99, false},
	{"Zipf keys", func(l *load) {
		l.pattern, l.keys = even, 100
		l.perSecond, l.lastNs = 3*l.perSecond, l.lastNs/4
	}, 0.99, false},
	{"moving", func(l *load) { l.pattern = moving }, 0.99, false},
	{"bursts", func(l *load) { l.pattern = bursts }, 0.88, false},
	{"idle proxies", func(l *load) { l.pattern = idle }, 0.99, false},
	{"slow network", func(l *load) { l.pattern, l.tripNs = even, 30*ms }, 0.99, false},
	{"lost messages", func(l *load) { l.pattern, l.loss = even, 0.01 }, 0.8, true},
}

// loads have twice the demand that their limit admits. Long ones are more, and last longer.
func loads() []load {
	list := []load{
		{limit: "10/1s", perSecond: 20, lastNs: 30 * second},
		{limit: "100/1s", perSecond: 200, lastNs: 10 * second},
		{limit: "1000/1s", perSecond: 2000, lastNs: 3 * second},
		{limit: "10000/1s", perSecond: 20000, lastNs: second},
		{limit: "100/1m", perSecond: 3.4, lastNs: 10 * minute},
		{limit: "1000/1m", perSecond: 34, proxies: 100, lastNs: 2 * minute},
		{limit: "10000/1h", perSecond: 5.6, workers: 1, lastNs: hour},
		{limit: "10000/1d", perSecond: 0.23, workers: 1, lastNs: day},
	}
	if testing.Short() {
		return list[:1]
	}
	if !*long {
		return list
	}
	for i := range list {
		if list[i].lastNs < hour {
			list[i].lastNs *= 10
		}
	}
	return append(list, load{limit: "100/1d", perSecond: 0.0023, workers: 1, lastNs: day},
		load{limit: "100000/1d", perSecond: 2.3, workers: 1, lastNs: day})
}

// run lets a fleet live through a load, and returns how much of the limit it used.
func (l load) run(t *testing.T) (*fleet, float64) {
	f := l.live(t)
	used, over := f.used()
	t.Logf("%s over %d proxies: %.2f %% used, %.3f asks a request, %.2f %% waited, p99 %.2f ms",
		f.limit, f.proxies, 100*used, f.asksEach(), 100*f.waited(), float64(f.waitP99())/1e6)
	require.LessOrEqual(t, over, 0, l.limit)
	if l.loss == 0 {
		require.Zero(t, f.alone, "decided without the service")
	}
	return f, used
}

// A fleet of three proxies of four workers, or of a hundred, uses the whole limit
// under twice the demand, and never more, however the demand is spread, from windows
// of a second to those of a day.
func TestAFleetUsesTheWholeLimit(t *testing.T) {
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, l := range loads() {
				s.set(&l)
				f, used := l.run(t)
				require.GreaterOrEqual(t, used, s.used, l.limit)
				if !s.lost {
					require.LessOrEqual(t, f.waitP99(), 4*f.tripNs, l.limit)
				}
			}
		})
	}
}

// Where the limit suffices, a busy key asks once in a hundred requests, also shortly
// before its window ends.
func TestAFleetBelowItsLimit(t *testing.T) {
	for _, p := range []pattern{even, ninetyTen, moving} {
		f, used := load{limit: "20000/1s", perSecond: 10000, workers: 1, lastNs: 3 * second, pattern: p}.run(t)
		require.Less(t, f.asksEach(), 0.01)
		require.Less(t, f.waited(), 0.01)
		require.Greater(t, used, 0.99)
	}
}

// Tenants whose tokens say limits of their own use them, and never more, though there are
// more numbers than a stream has room for definitions.
func TestAFleetWhoseRequestsSayTheirLimits(t *testing.T) {
	loads := []load{{pattern: even}, {pattern: moving}, {pattern: even, lease: "off"}, {pattern: moving, loss: 0.01}}
	for _, l := range loads {
		l.limit, l.requested = "2/1s", 1
		l.keys, l.perSecond = 3000, 4000
		l.workers, l.tripNs = 2, 2*ms
		l.lastNs = 3 * second
		_, used := l.run(t)
		require.Greater(t, used, map[bool]float64{true: 0.8, false: 0.98}[l.loss > 0])
	}
}
