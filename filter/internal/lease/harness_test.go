package lease_test

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/talk"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// The tests play workers, their talk and a service together, by this file. scripts_test.go has most cases, as lines of
// steps. The other tests are of what a script cannot say: leases_test.go of a LeaseSource, lost_test.go of units that
// are lost, holds_test.go of a HoldSource, blocks_test.go of denials and blocks, alone_test.go of silence,
// times_test.go of what the service says of times and windows, talk_test.go of package talk, and fleet_test.go of many
// proxies.

const (
	ms     = int64(1_000_000)
	second = 1000 * ms
)

// worker is one worker of a proxy.
type worker struct {
	t      *testing.T
	proxy  *hosttest.Proxy
	engine *engine.Engine
	client *talk.Client
	stream *stream // nil = none is open
	down   bool    // no stream can be opened
	broken bool    // no message can be sent
	opened int
	random uint32
	lastID uint32 // of the asks that were sent

	next     uint32
	users    map[uint32]string
	verdicts map[uint32]bool // of the requests that are decided: allowed
	looked   []result.Usage  // what clients were told that asked for their usage
	onResume func(*decide.Verdict)
	// onDecided is called with each verdict that is final.
	onDecided func(context uint32, v *decide.Verdict)
}

func newWorker(t *testing.T, proxy *hosttest.Proxy, rules string, seed uint32) *worker {
	w := &worker{t: t, proxy: proxy, random: seed, users: map[uint32]string{}, verdicts: map[uint32]bool{}}
	p := hosttest.Policy(t, rules)
	p.Usage = &policy.Usage{Path: "/usage"}
	w.engine = engine.New(p, proxy, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	w.client = talk.NewClient(w, w.engine.Cluster, 100*ms)
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
	if w.broken {
		return false
	}
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
	for range talk.MaxResumed {
		next := w.client.Next()
		if next == nil {
			break
		}
		w.resume(next)
	}
	w.client.Flush(w.proxy.Clock)
}

func (w *worker) resume(next *talk.Waiter) {
	require.False(w.t, w.isDecided(next.ContextID), "decided twice")
	if next.Look != nil {
		w.client.Done(next)
		w.tell(next.ContextID, next.Look)
		return
	}
	w.proxy.Headers = nil // they are gone with the callback
	v := next.Verdict
	w.engine.Resume(v)
	if w.onResume != nil {
		w.onResume(v)
	}
	if v.Pending {
		w.client.Wait(next.ContextID, v, w.proxy.Clock)
		return
	}
	w.client.Done(next)
	w.decided(next.ContextID, v)
	w.engine.Free(v)
}

// receive has the worker take a message of the service.
func (w *worker) receive(message []byte) {
	require.NoError(w.t, w.client.Receive(message, w.proxy.Clock))
	w.goOn()
}

// end ends the worker's configuration.
func (w *worker) end() {
	w.client.ExpireAll()
	for next := w.client.Next(); next != nil; next = w.client.Next() {
		w.resume(next)
	}
	w.client.Close(w.proxy.Clock)
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

// be has the proxy be at a request.
func (w *worker) be(context uint32) {
	w.proxy.Headers = map[string][]string{}
	for i, value := range strings.Fields(w.users[context]) {
		w.proxy.Headers[[]string{"u", "v"}[i]] = []string{value}
	}
}

// look has a user ask for its own usage.
func (w *worker) look(user string) {
	w.next++
	w.users[w.next] = user
	w.be(w.next)
	look := w.engine.LookAtQuota()
	if look == nil || !w.client.WaitLook(w.next, look, w.proxy.Clock) {
		w.tell(w.next, look)
		return
	}
	w.client.Flush(w.proxy.Clock)
}

// tell tells a user its usage.
func (w *worker) tell(context uint32, look *lease.Look) {
	w.be(context)
	var usage result.Usage
	require.NoError(w.t, json.Unmarshal(w.engine.AppendUsage(nil, look), &usage))
	w.looked = append(w.looked, usage)
}

func (w *worker) decide(context uint32) {
	w.be(context)
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
	if w.engine.Cluster.HasNews() {
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

// serve lets the service answer messages, so many at most.
func (w *worker) serve(s *service, most int) (messages int) {
	for ; messages < most && w.stream != nil && len(w.stream.Asks) > 0; messages++ {
		s.serve(w.stream)
		for len(w.stream.Answers) > 0 {
			w.deliver()
		}
	}
	return messages
}

// holding is a worker whose requests run until they are answered.
type holding struct {
	*worker
	rules    string
	seed     uint32
	holds    map[uint32][]hold.Hold
	starting int // verdicts that say so
}

func newHolding(t *testing.T, proxy *hosttest.Proxy, rules string, seed uint32) *holding {
	h := &holding{worker: newWorker(t, proxy, rules, seed), rules: rules, seed: seed, holds: map[uint32][]hold.Hold{}}
	h.onDecided = func(context uint32, v *decide.Verdict) {
		for _, s := range v.Subjects {
			if s.Reason() == "starting" {
				h.starting++
			}
		}
		if v.Allowed {
			h.holds[context] = v.BeginHolds(nil)
		}
	}
	return h
}

func holdingPair(t *testing.T, rules string) (*holding, *service) {
	proxy := hosttest.New()
	proxy.Clock = 1000 * 60 * second
	return newHolding(t, proxy, rules, 1), newService(t, func() int64 { return proxy.Clock })
}

// answer ends a request, at what its answer costs.
func (h *holding) answer(context, cost uint32) {
	for _, held := range h.holds[context] {
		held.Settle(cost, metrics.ByAnswer, h.proxy.Clock)
	}
	delete(h.holds, context)
	h.flush()
}

// service is the quota service, and what it has been asked.
type service struct {
	*quotatest.Service
	t       *testing.T
	now     func() int64
	keys    map[[16]byte]*asked
	first   *asked
	asked   int
	defined int           // definitions that it got
	refusal quota.Outcome // of each ask: Unknown by a release that knows no reports, Busy; 0 = it answers
}

// asked is a key that somebody has asked for.
type asked struct {
	hash       [16]byte
	definition quota.Definition
	lastNs     int64 // when it was asked for last
}

// stream is one stream of a worker: what the worker has sent, and what the service has answered.
type stream struct {
	Asks, Answers [][]byte
	service       *quotatest.Stream
	definitions   map[uint32]quota.Definition
}

func newService(t *testing.T, now func() int64) *service {
	return &service{Service: quotatest.New(t, now), t: t, now: now, keys: map[[16]byte]*asked{}}
}

// serve has the service answer the first message of the stream.
func (s *service) serve(st *stream) {
	if st.service == nil {
		st.service, st.definitions = s.Open(s.t), map[uint32]quota.Definition{}
	}
	message := st.Asks[0]
	st.Asks = st.Asks[1:]
	var m quota.Asks
	require.NoError(s.t, m.Decode(message))
	s.defined += len(m.Definitions)
	for _, d := range m.Definitions {
		d.Windows = slices.Clone(d.Windows)
		st.definitions[d.ID] = d
	}
	for _, a := range m.Asks {
		s.asked++
		for _, p := range a.Parts {
			key := s.key(p.Key)
			key.definition, key.lastNs = st.definitions[p.Definition], s.now()
		}
	}
	if s.refusal != 0 {
		answers := quota.Results{Proxies: 2}
		for _, a := range m.Asks {
			answers.Results = append(answers.Results, quota.AskResult{ID: a.ID, Outcome: s.refusal})
		}
		st.Answers = append(st.Answers, answers.Append(nil))
		return
	}
	require.NoError(s.t, st.service.Receive(message))
	s.Due()
	for answer := st.service.Next(); answer != nil; answer = st.service.Next() {
		var answers quota.Results
		require.NoError(s.t, answers.Decode(answer))
		for _, a := range answers.Results {
			require.NotEqual(s.t, quota.Unknown, a.Outcome)
		}
		st.Answers = append(st.Answers, answer)
	}
}

// key is what is known of a key.
func (s *service) key(hash [16]byte) *asked {
	if s.keys[hash] == nil {
		s.keys[hash] = &asked{hash: hash}
	}
	s.first = cmp.Or(s.first, s.keys[hash])
	return s.keys[hash]
}

// inspect asks the service how a key stands.
func (s *service) inspect(key *asked) []quota.Standing {
	d := key.definition
	m := quota.Asks{
		Domain: "default", Process: 9, Definitions: []quota.Definition{d},
		Asks: []quota.Ask{{Parts: []quota.Part{{Definition: d.ID, Key: key.hash, Inspect: true}}}},
	}
	st := s.Open(s.t)
	defer st.Close()
	require.NoError(s.t, st.Receive(m.Append(nil)))
	s.Due()
	var answers quota.Results
	require.NoError(s.t, answers.Decode(st.Next()))
	return answers.Results[0].Grants[0].Windows
}

// used is what the service has counted in the first window of all keys.
func (s *service) used() (units uint32) {
	for _, key := range s.keys {
		units += s.inspect(key)[0].Used
	}
	return units
}

// held is what the service knows to be held of all keys.
func (s *service) held() (units uint32) {
	for _, key := range s.keys {
		standings := s.inspect(key)
		units += standings[len(standings)-1].Used
	}
	return units
}
