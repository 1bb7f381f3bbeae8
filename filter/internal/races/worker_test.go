package races

import (
	"iter"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/talk"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// worker is one worker of a proxy, and its engine's host.
type worker struct {
	*hosttest.Proxy
	world  *world
	id     int
	engine *engine.Engine
	client *talk.Client
	stream *stream // nil = none is open
	random uint32
	row    uint64 // the number of the client's reports at the service
	script []request
	ticks  int64 // when the next tick is due
	ended  bool
	runs   []run

	apartNs int64 // how far its clocks are ahead of the service's
	refused int   // how many more streams it cannot open

	yield  func(struct{}) bool
	resume func() (struct{}, bool) // nil = in no callback

	next    uint32
	waiting map[uint32]request
	headers request
	readNs  int64 // when it last read the clock
}

// start gives the worker a new configuration.
func (k *worker) start() {
	k.engine = engine.New(k.world.policy, k, engine.Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	next := worker{random: k.random}
	k.row = uint64(next.Random())<<32 | uint64(next.Random())
	k.client = talk.NewClient(k, k.engine.Cluster, timeoutNs)
	k.ticks = k.world.now + second
}

// call begins a callback of the worker.
func (k *worker) call(f func()) {
	k.resume, _ = iter.Pull(func(yield func(struct{}) bool) {
		k.yield = yield
		f()
	})
	k.proceed()
}

// proceed lets the worker run to its next access to shared data.
func (k *worker) proceed() {
	k.world.last = k.id
	if _, more := k.resume(); !more {
		k.resume = nil
		k.ticks = min(k.ticks, k.world.now+int64(k.client.PeriodMs())*ms)
	}
}

func (k *worker) begin() {
	k.endLingering()
	k.next++
	r := k.script[0]
	r.beganNs = k.world.now
	k.waiting[k.next] = r
	k.script = k.script[1:]
	k.headers = k.waiting[k.next]
	v := k.engine.Decide()
	if v.Pending {
		k.engine.Keep(v)
		k.wait(k.next, v)
		k.client.Flush(k.now())
		return
	}
	k.decided(k.next, v)
	k.flush()
}

func (k *worker) wait(context uint32, v *decide.Verdict) {
	r := k.waiting[context]
	parts := lease.BeginAsk(v)
	for i := range parts {
		want := parts[i].Wire
		name := [...]string{r.user, r.tenant}[want.Definition]
		k.world.keys[name] = key{k.engine.Cluster.Definitions()[want.Definition], want.Key, false}
	}
	k.client.Wait(context, v, k.now())
}

// decided records a final verdict.
func (k *worker) decided(context uint32, v *decide.Verdict) {
	r := k.waiting[context]
	delete(k.waiting, context)
	k.noteTry(r, v)
	if holds := v.BeginHolds(nil); v.Allowed && len(holds) > 0 {
		k.hold(context, r, holds)
	} else if v.Allowed {
		for _, key := range []string{r.user, r.tenant} {
			if key != "" {
				k.world.admitted = append(k.world.admitted, admission{key, k.readNs, k.world.now})
			}
		}
		k.admitAlone(v)
	}
}

func (k *worker) hear() {
	st := k.stream
	if st.closed {
		k.stream = nil
		k.client.StreamEnded(k.now())
		return
	}
	message := st.in[0]
	st.in = st.in[1:]
	if err := k.client.Receive(message, k.now()); err != nil {
		k.world.t.Fatal(err)
	}
	k.goOn()
}

func (k *worker) tick() {
	k.ticks = k.world.now + second
	k.client.Tick(k.now())
	k.goOn()
	k.endLingering()
	k.flush()
}

func (k *worker) now() int64 { return k.world.now + k.apartNs }

// Now returns the time, and records that it was read.
func (k *worker) Now() int64 {
	k.readNs = k.world.now
	return k.now()
}

func (k *worker) Monotonic() int64 { return k.Now() }

// forget ends the oldest request that waits.
func (k *worker) forget() {
	context := slices.Min(slices.Collect(maps.Keys(k.waiting)))
	delete(k.waiting, context)
	if v := k.client.Forget(context); v != nil {
		k.engine.Free(v)
	}
	k.flush()
}

// Get and Set stop the worker.
func (k *worker) Get(key []byte) ([]byte, uint32, state.Status) {
	k.park()
	return k.Proxy.Get(key)
}

func (k *worker) Set(key, value []byte, cas uint32) state.Status {
	k.park()
	return k.Proxy.Set(key, value, cas)
}

func (k *worker) park() {
	if k.resume != nil {
		k.yield(struct{}{})
	}
}

func (k *worker) Header(name string) (string, bool) {
	value := map[string]string{"u": k.headers.user, "t": k.headers.tenant}[name]
	return value, value != ""
}

// goOn lets requests go on that have waited.
func (k *worker) goOn() {
	for w := k.client.Next(); w != nil; w = k.client.Next() {
		k.resumeWaiter(w)
	}
	k.client.Flush(k.now())
}

func (k *worker) resumeWaiter(w *talk.Waiter) {
	require.Contains(k.world.t, k.waiting, w.ContextID, "its client has left")
	k.headers = k.waiting[w.ContextID]
	v := w.Verdict
	k.engine.Resume(v)
	if v.Pending {
		k.wait(w.ContextID, v)
		return
	}
	k.client.Done(w)
	k.decided(w.ContextID, v)
	k.engine.Free(v)
}

func (k *worker) Random() uint32 {
	k.random = k.random*1664525 + 1013904223
	return k.random
}

func (k *worker) Open() bool {
	if k.refused > 0 {
		k.refused--
		return false
	}
	k.stream = &stream{service: k.world.service.Open(k.world.t)}
	return true
}

func (k *worker) Cancel() {
	k.world.lost = true
	k.stream.service.Close()
	k.stream = nil
}

func (k *worker) Send(message []byte) bool {
	k.stream.out = append(k.stream.out, slices.Clone(message))
	return true
}
