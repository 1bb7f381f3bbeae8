package lease_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	ms     = int64(1_000_000)
	second = 1000 * ms
)

// worker is one worker of a proxy.
type worker struct {
	t      *testing.T
	proxy  *hosttest.Proxy
	engine *engine.Engine
	client *lease.Client
	stream *stream // nil = none is open
	down   bool    // no stream can be opened
	opened int
	random uint32
	lastID uint32 // of the asks that were sent

	next     uint32
	users    map[uint32]string
	verdicts map[uint32]bool // of the requests that are decided: allowed
	onResume func(*decide.Verdict)
	// onDecided is called with each verdict that is final.
	onDecided func(context uint32, v *decide.Verdict)
}

func newWorker(t *testing.T, proxy *hosttest.Proxy, rules string, seed uint32) *worker {
	w := &worker{t: t, proxy: proxy, random: seed, users: map[uint32]string{}, verdicts: map[uint32]bool{}}
	w.engine = engine.New(hosttest.Policy(t, rules), proxy, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	w.engine.Leases.TimeoutNs = 100 * ms
	w.client = lease.NewClient(w, w.engine.Leases)
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
	var m quota.Asks
	require.NoError(w.t, m.Decode(message))
	for _, a := range m.Asks {
		w.lastID = max(w.lastID, a.ID)
	}
	return true
}

func (w *worker) Cancel() { w.stream = nil }

func (w *worker) Random() uint32 {
	w.random = w.random*1664525 + 1013904223
	return w.random
}

// goOn goes on with requests that have waited, as many as one callback may.
func (w *worker) goOn() {
	for range lease.MaxResumed {
		next := w.client.Next()
		if next == nil {
			break
		}
		w.resume(next)
	}
	w.client.Flush(w.proxy.Clock)
}

func (w *worker) resume(next *lease.Waiter) {
	require.False(w.t, w.isDecided(next.Context), "decided twice")
	w.proxy.Headers = nil // they are gone with the callback
	v := next.Verdict
	w.engine.Resume(v)
	if w.onResume != nil {
		w.onResume(v)
	}
	if v.Pending {
		w.client.Wait(next.Context, v, w.proxy.Clock)
		return
	}
	w.client.Done(next)
	w.decided(next.Context, v)
	w.engine.Free(v)
}

// receive has the worker take a message of the service.
func (w *worker) receive(message []byte) {
	require.NoError(w.t, w.client.Receive(message, w.proxy.Clock))
	w.goOn()
}

// end ends the worker's configuration.
func (w *worker) end() {
	w.client.End()
	for next := w.client.Next(); next != nil; next = w.client.Next() {
		w.resume(next)
	}
	w.client.Close()
}

func (w *worker) isDecided(context uint32) bool {
	_, decided := w.verdicts[context]
	return decided
}

// request begins a request of a user and returns its number.
func (w *worker) request(user string) uint32 {
	w.next++
	w.users[w.next] = user
	w.decide(w.next)
	return w.next
}

func (w *worker) decide(context uint32) {
	w.proxy.Headers = map[string][]string{}
	for i, value := range strings.Fields(w.users[context]) {
		w.proxy.Headers[[]string{"u", "v"}[i]] = []string{value}
	}
	v := w.engine.Decide()
	if v.Pending {
		w.engine.Keep(v)
		w.client.Wait(context, v, w.proxy.Clock)
		w.client.Flush(w.proxy.Clock)
		return
	}
	w.decided(context, v)
	w.flush()
}

// decided notes a verdict that is final.
func (w *worker) decided(context uint32, v *decide.Verdict) {
	w.verdicts[context] = v.Allowed
	if w.onDecided != nil {
		w.onDecided(context, v)
	}
}

// flush sends what a callback has left to be sent.
func (w *worker) flush() {
	if w.engine.Leases.HasNews() {
		w.client.Flush(w.proxy.Clock)
	}
}

// deliver brings the first answer of the service.
func (w *worker) deliver() {
	answer := w.stream.Answers[0]
	w.stream.Answers = w.stream.Answers[1:]
	w.receive(answer)
}

// exchange lets the service answer all there is.
func (w *worker) exchange(s *service) {
	for st := w.stream; st != nil && st == w.stream && len(st.Asks) > 0; {
		s.serve(st)
		for len(st.Answers) > 0 && st == w.stream {
			w.deliver()
		}
	}
}

func (w *worker) tick() {
	w.client.Tick(w.proxy.Clock)
	w.goOn()
}

// pair is a worker and its service at one clock.
func pair(t *testing.T, rules string) (*worker, *service) {
	proxy := hosttest.New()
	proxy.Clock = 1000 * 60 * second
	return newWorker(t, proxy, rules, 1), newService(t, func() int64 { return proxy.Clock })
}

func (w *worker) admitted() (n int) {
	for _, allowed := range w.verdicts {
		if allowed {
			n++
		}
	}
	return n
}

// The service may be silent to a worker that has asked ahead and of which no request waits: it is cut
// off, and admits its share more.
func TestSilenceForWhichNobodyHasWaited(t *testing.T) {
	w, s := pair(t, strings.Replace(perUser, `"limits"`, `"on_unavailable":"local","limits"`, 1))
	w.engine.Leases.SetProxies(2)
	w.request("a")
	w.exchange(s)
	asked := w.lastID
	for w.lastID == asked { // of the lease, until it asks for more
		w.request("a")
	}
	for range 10 {
		require.False(t, w.engine.Leases.Silent)
		w.proxy.Clock += 10 * ms
		w.tick()
	}
	require.True(t, w.engine.Leases.Silent)
	require.Len(t, w.verdicts, w.admitted(), "all were admitted at once")
	for range 200 {
		w.request("a")
	}
	require.Equal(t, 1+50+50, w.admitted(), "what was asked for, the lease, and the share")
}

func TestWhatANewerServiceSaysIsNotAGrant(t *testing.T) {
	w, _ := pair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["100/1m"],"on_unavailable":"deny"}`)
	first := w.request("a")
	m := quota.Grants{Results: []quota.AskResult{{
		ID: w.lastID, Result: quota.Busy + 1,
		Grants: []quota.Grant{{Number: 1, Units: 50, ValidNs: second, Windows: []quota.Standing{{}}}},
	}}}
	w.receive(m.Append(nil))
	require.Contains(t, w.verdicts, first)
	require.False(t, w.verdicts[first])
	require.False(t, w.verdicts[w.request("a")], "for a second nobody asks again")
}

func TestALateAnswerCounts(t *testing.T) {
	w, s := pair(t, perUser)
	w.request("b")
	w.exchange(s)
	first := w.request("a")
	late := w.stream
	s.serve(late)
	w.request("c") // keeps the service from being silent
	w.proxy.Clock += 50 * ms
	require.Len(t, late.Answers, 1)
	answer := late.Answers[0]
	late.Answers = nil
	said := quota.Grants{Proxies: 2}
	w.receive(said.Append(nil))
	w.proxy.Clock += 60 * ms
	w.tick()
	require.Contains(t, w.verdicts, first)
	w.exchange(s)
	asked := w.lastID
	w.request("a")
	require.Greater(t, w.lastID, asked, "the key is asked for again")
	w.receive(answer)
	require.True(t, w.verdicts[w.request("a")], "the unit of the late answer is used")
}
