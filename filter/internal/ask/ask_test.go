package ask

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	ms     = int64(1_000_000)
	second = 1000 * ms
)

type (
	service = hosttest.Quota
	stream  = hosttest.QuotaStream
)

// worker is one worker of a proxy.
type worker struct {
	t      *testing.T
	proxy  *hosttest.Proxy
	engine *engine.Engine
	client *Client
	stream *stream // nil = none is open
	down   bool    // no stream can be opened
	opened int
	random uint32

	next     uint32
	users    map[uint32]string
	verdicts map[uint32]bool // of the requests that are decided: allowed
}

func newWorker(t *testing.T, proxy *hosttest.Proxy, rules string, seed uint32) *worker {
	w := &worker{t: t, proxy: proxy, random: seed, users: map[uint32]string{}, verdicts: map[uint32]bool{}}
	w.engine = engine.New(hosttest.Policy(t, rules), proxy, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	w.engine.Quota.TimeoutNs = 100 * ms
	w.client = New(w, w.engine)
	return w
}

func (w *worker) Open() bool {
	if w.down {
		return false
	}
	w.opened++
	w.stream = &stream{}
	return true
}

func (w *worker) Send(message []byte) bool {
	require.NotNil(w.t, w.stream)
	require.LessOrEqual(w.t, len(message), quota.MaxMessageBytes)
	w.stream.Asks = append(w.stream.Asks, slices.Clone(message))
	return true
}

func (w *worker) Cancel() { w.stream = nil }

func (w *worker) Random() uint32 {
	w.random = w.random*1664525 + 1013904223
	return w.random
}

func (w *worker) Resume(context uint32) bool {
	require.NotContains(w.t, w.verdicts, context, "decided twice")
	return w.decide(context)
}

// request begins a request of a user and returns its number.
func (w *worker) request(user string) uint32 {
	w.next++
	w.users[w.next] = user
	w.decide(w.next)
	return w.next
}

func (w *worker) decide(context uint32) bool {
	w.proxy.Headers = map[string][]string{"u": {w.users[context]}}
	v := w.engine.Decide()
	if v.Pending {
		w.client.Wait(context, v, w.proxy.Clock)
		return false
	}
	w.verdicts[context] = v.Allowed
	if v.WantsRefill() {
		w.client.Refill(v, w.proxy.Clock)
	}
	return true
}

// deliver brings the first answer of the service.
func (w *worker) deliver() {
	answer := w.stream.Answers[0]
	w.stream.Answers = w.stream.Answers[1:]
	require.NoError(w.t, w.client.Receive(answer, w.proxy.Clock))
}

// exchange lets the service answer all there is.
func (w *worker) exchange(s *service) {
	for st := w.stream; st != nil && st == w.stream && len(st.Asks) > 0; {
		s.Serve(w.t, st)
		for len(st.Answers) > 0 && st == w.stream {
			w.deliver()
		}
	}
}

func (w *worker) tick() {
	w.client.Return(w.engine.Return(nil, w.client.Stream(), 1024))
	w.client.Tick(w.proxy.Clock)
}

const (
	perUser = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"]}`
	noLease = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["3/1m"],"lease":"off"}`
)

// pair is a worker and its service at one clock.
func pair(t *testing.T, rules string) (*worker, *service) {
	proxy := hosttest.New()
	proxy.Clock = 1000 * 60 * second
	return newWorker(t, proxy, rules, 1), hosttest.NewQuota(func() int64 { return proxy.Clock })
}

func TestAFirstRequestWaitsAndLaterOnesDoNot(t *testing.T) {
	w, s := pair(t, perUser)
	first := w.request("a")
	require.NotContains(t, w.verdicts, first)
	require.True(t, w.client.Waiting())
	w.exchange(s)
	require.True(t, w.verdicts[first])
	require.False(t, w.client.Waiting())

	for range 20 { // the rate is known by now
		w.proxy.Clock += 10 * ms
		w.request("a")
		w.exchange(s)
	}
	asked := s.Granted(w.stream)
	w.request("a")
	w.request("a")
	require.Len(t, w.verdicts, 23, "decided without the service")
	require.LessOrEqual(t, asked, 12)
}

func TestADenialIsRemembered(t *testing.T) {
	w, s := pair(t, perUser)
	for range 103 {
		w.request("a")
		w.exchange(s)
	}
	require.Equal(t, 100, w.admitted())
	before := w.lastAsk()
	require.False(t, w.verdicts[w.request("a")])
	require.Equal(t, before, w.lastAsk(), "asked again")
	w.proxy.Clock += second
	w.request("a")
	require.NotEqual(t, before, w.lastAsk(), "a denial is remembered for a second at most")
}

func (w *worker) lastAsk() uint32 { return w.client.lastID }

func (w *worker) admitted() (n int) {
	for _, allowed := range w.verdicts {
		if allowed {
			n++
		}
	}
	return n
}

func TestWithoutALeaseEachRequestAsks(t *testing.T) {
	w, s := pair(t, noLease)
	for i := range 5 {
		at := w.request("a")
		w.exchange(s)
		require.Equal(t, i < 3, w.verdicts[at], "request %d", i)
	}
	require.EqualValues(t, 5, w.lastAsk())
}

func TestASilentServiceIsWaitedForOnce(t *testing.T) {
	for _, tt := range []struct {
		then  string
		allow int
	}{{"local", 50}, {"allow", 200}, {"deny", 0}} {
		t.Run(tt.then, func(t *testing.T) {
			w, s := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"],"on_unavailable":"`+tt.then+`"}`)
			w.engine.Quota.Proxies = 2
			first := w.request("a")
			w.proxy.Clock += 90 * ms
			w.tick()
			require.NotContains(t, w.verdicts, first)
			w.proxy.Clock += 20 * ms
			w.tick()
			require.Contains(t, w.verdicts, first)
			for range 199 {
				w.request("a")
			}
			require.Len(t, w.verdicts, 200, "nobody waits for a silent service")
			require.Equal(t, tt.allow, w.admitted())

			for range 20 { // it comes back
				w.proxy.Clock += 100 * ms
				w.tick()
				w.exchange(s)
			}
			require.False(t, w.engine.Quota.Silent)
			for range 200 {
				w.request("a")
				w.exchange(s)
			}
			if tt.then == "local" {
				require.Equal(t, 100, w.admitted(), "what was admitted alone is counted")
			}
		})
	}
}

func TestAClosedStreamIsAskedAgain(t *testing.T) {
	w, s := pair(t, perUser)
	first := w.request("a")
	w.stream = nil
	w.client.Closed(w.proxy.Clock)
	w.proxy.Clock += 20 * ms
	w.tick()
	w.exchange(s)
	require.True(t, w.verdicts[first])
	require.Equal(t, 2, w.opened)
}

func TestALateAnswerCounts(t *testing.T) {
	w, s := pair(t, perUser)
	w.request("b")
	w.exchange(s)
	first := w.request("a")
	late := w.stream
	s.Serve(t, late)
	w.request("c") // keeps the service from being silent
	w.proxy.Clock += 50 * ms
	require.Len(t, late.Answers, 1)
	answer := late.Answers[0]
	late.Answers = nil
	w.client.unanswered = false
	w.client.heardNs = w.proxy.Clock
	w.proxy.Clock += 60 * ms
	w.tick()
	require.Contains(t, w.verdicts, first)
	require.NoError(t, w.client.Receive(answer, w.proxy.Clock))
	require.True(t, w.verdicts[w.request("a")], "the unit of the late answer is used")
}

func TestAClientThatHasGoneIsNotResumed(t *testing.T) {
	w, s := pair(t, perUser)
	first := w.request("a")
	w.client.Forget(first)
	require.False(t, w.client.Waiting())
	w.exchange(s)
	require.NotContains(t, w.verdicts, first)
	require.True(t, w.verdicts[w.request("a")], "its unit is the next request's")
}

func TestOneCallbackResumesFew(t *testing.T) {
	w, s := pair(t, `{"name":"r","scope":"cluster","limits":["100/1m"]}`)
	for range 300 {
		w.request("a")
	}
	for range 2 { // the first request asks alone
		s.Serve(t, w.stream)
		w.deliver()
	}
	require.Len(t, w.verdicts, 1+maxResumed)
	for range 10 {
		w.tick()
		w.exchange(s)
	}
	require.Len(t, w.verdicts, 300)
	require.Equal(t, 100, w.admitted())
}

func TestTooManyWaiters(t *testing.T) {
	w, _ := pair(t, `{"name":"r","scope":"cluster","limits":["100000/1m"],"on_contention":"deny"}`)
	for range maxWaiters + 10 {
		w.request("a")
	}
	require.Len(t, w.client.waiters, maxWaiters)
	require.Len(t, w.verdicts, 10)
	require.Zero(t, w.admitted())
}

func TestIdleUnitsGoBack(t *testing.T) {
	w, s := pair(t, `{"name":"r","scope":"cluster","limits":["10000/1m"]}`)
	for range 500 {
		w.proxy.Clock += ms
		w.request("a")
		w.exchange(s)
	}
	total := func() (n uint32) {
		for _, key := range s.States {
			n += key.Usages[0].Used
		}
		return n
	}
	require.Greater(t, total(), uint32(500), "some are leased ahead")
	for range 10 {
		w.proxy.Clock += second
		w.tick()
		w.exchange(s)
	}
	require.EqualValues(t, 500, total())
}

// law checks what was admitted at the given instants, in their order.
type law struct {
	limits string
	holds  func(at []int64) bool
	// atOnce makes each answer arrive at once. Where nothing can be leased a request is
	// counted when it is granted, not when its answer has arrived.
	atOnce bool
}

var laws = []law{
	{`"40/1s"`, func(at []int64) bool {
		return mostIn(at, func(from int64) int64 { return from - from%second + second }) <= 40
	}, false},
	{`{"requests":40,"per":"1s","algorithm":"sliding_window_log"}`, withinAny(40, second), true},
	{`{"requests":40,"per":"12s","algorithm":"sliding_window_log"}`, withinAny(40, 12*second), false},
	{`{"requests":40,"per":"20s","algorithm":"token_bucket"}`, bucket(40, 20*second), false},
	{`{"requests":40,"per":"1s","algorithm":"token_bucket","burst":20}`, func(at []int64) bool {
		return withinBucket(at, 20, second/40)
	}, true},
	{`{"requests":40,"per":"1s","algorithm":"fixed_window_per_key"}`, withinAny(80, second), false},
	{`"40/1s",{"requests":60,"per":"12s","algorithm":"sliding_window_log"}`, withinAny(60, 12*second), false},
}

// mostIn is how many instants lie in one window, which begins where it likes and
// ends where end says.
func mostIn(at []int64, end func(from int64) int64) (most int) {
	for i := range at {
		n := 0
		for _, t := range at[i:] {
			if t < end(at[i]) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func withinAny(n int, period int64) func(at []int64) bool {
	return func(at []int64) bool { return mostIn(at, func(from int64) int64 { return from + period }) <= n }
}

func bucket(n, period int64) func(at []int64) bool {
	return func(at []int64) bool { return withinBucket(at, n, period/n) }
}

// withinBucket reports whether a bucket of so many tokens that gains one each
// gainNs was never overdrawn.
func withinBucket(at []int64, burst, gainNs int64) bool {
	level, last := burst*gainNs, int64(0)
	for i, t := range at {
		if i > 0 {
			level = min(level+t-last, burst*gainNs)
		}
		if level -= gainNs; level < 0 {
			return false
		}
		last = t
	}
	return true
}

var worlds = flag.Int("worlds", 20, "how many random worlds the limit has to hold in, for each algorithm")

// In a world of two proxies with two workers each, whose clocks are apart and whose
// messages are late, lost and cut off by chance, the limit holds.
func TestTheLimitHoldsWhateverHappens(t *testing.T) {
	for _, law := range laws {
		t.Run(law.limits, func(t *testing.T) {
			t.Parallel()
			most := 0
			for seed := range uint64(*worlds) {
				most = max(most, runWorld(t, law, seed))
			}
			require.Greater(t, most, 30, "the limit was never near")
		})
	}
}

func runWorld(t *testing.T, law law, seed uint64) (most int) {
	dice := rand.New(rand.NewPCG(seed, 1))
	lease := []string{`"auto"`, `"off"`, `7`}[dice.IntN(3)]
	rules := `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":[` + law.limits + `],"on_unavailable":"deny","lease":` + lease + `}`
	clock := 1000 * second
	proxies := []*hosttest.Proxy{hosttest.New(), hosttest.New()}
	apart := []int64{dice.Int64N(20 * second), -dice.Int64N(20 * second)}
	for i, p := range proxies {
		p.Clock = clock + apart[i]
	}
	s := hosttest.NewQuota(func() int64 { return clock })
	var workers []*worker
	for i := range 4 {
		workers = append(workers, newWorker(t, proxies[i/2], rules, uint32(seed)+uint32(i)))
	}
	admitted := map[string][]int64{}
	slow := 1 + dice.Int64N(40)
	for range 2000 {
		w := workers[dice.IntN(len(workers))]
		switch n := dice.IntN(20); {
		case n < 9:
			w.request([]string{"a", "b"}[dice.IntN(2)])
		case n < 12 && w.stream != nil && len(w.stream.Asks) > 0:
			if s.Serve(t, w.stream); law.atOnce && len(w.stream.Answers) > 0 {
				w.deliver()
			}
		case n < 15 && w.stream != nil && len(w.stream.Answers) > 0:
			w.deliver()
		case n == 15 && w.stream != nil && dice.IntN(8) == 0:
			w.stream = nil
			w.client.Closed(w.proxy.Clock)
		case n == 16 && dice.IntN(8) == 0:
			w.down = !w.down
		case n == 17:
			w.client.Forget(w.next)
		default:
			step := dice.Int64N(slow * ms)
			clock += step
			for i, p := range proxies {
				p.Clock = clock + apart[i]
			}
			w.tick()
		}
		for context, allowed := range w.verdicts {
			if user, fresh := w.users[context]; fresh && allowed {
				admitted[user] = append(admitted[user], clock)
			}
			delete(w.users, context)
		}
	}
	for user, at := range admitted {
		require.True(t, law.holds(at), "seed %d: %s got too much", seed, user)
		most = max(most, len(at))
	}
	return most
}
