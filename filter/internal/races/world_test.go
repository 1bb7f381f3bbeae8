package races

import (
	"cmp"
	"slices"
	"testing"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	ms     int64 = 1_000_000
	second       = 1000 * ms
	hour         = 3600 * second

	workers   = 4 // two of each proxy
	timeoutNs = 100 * ms
	// quietNs is the time after which all unused units have been returned.
	quietNs = 14 * second
)

// action is something that may happen next.
type action struct {
	name []any // printed when it is chosen
	do   func()
}

// world is one execution under way.
type world struct {
	t        testing.TB
	scenario *scenario
	now      int64
	service  *quotatest.Service
	workers  []*worker
	beganNs  int64
	last     int // the worker that ran last
	passed   int // how often time has passed by choice
	faults   int
	lost     bool // a message was lost, and units with it
	admitted []admission
	keys     map[string]key // that were asked for, by name
	policy   *policy.Policy
	tries    []try
	holders
}

// admission is a hit that was admitted, between the instant by which it was decided and the one at
// which the decision was known. In between, another worker may lease the unit.
type admission struct {
	key              string
	earliest, latest int64
}

// key is how the service knows a key.
type key struct {
	definition quota.Definition
	hash       [16]byte
	alone      bool // the key counts only in its proxy
}

// request is a request of a user to a tenant. Its answer charges a part of what it holds. If its
// client resets it, the upstream may go on with it for a while.
type request struct {
	user, tenant string
	charged      uint32
	reset        bool
	atNs, lastNs int64 // the earliest time after the beginning, and how long its answer takes
	beganNs      int64 // when it has come
}

// stream is a worker's stream to the service.
type stream struct {
	service *quotatest.Stream
	out, in [][]byte
	closed  bool // and the worker does not know yet
}

func newWorld(t testing.TB, c *scenario, p *policy.Policy) *world {
	w := &world{t: t, scenario: c, now: 1000*hour + c.start, keys: map[string]key{}, policy: p, holders: newHolders()}
	w.service = quotatest.New(t, func() int64 { return w.now })
	var proxy *hosttest.Proxy
	for id := range workers {
		if id%2 == 0 {
			proxy = hosttest.New()
		}
		k := &worker{
			Proxy:   proxy,
			world:   w,
			id:      id,
			random:  uint32(id + 1),
			waiting: map[uint32]request{},
			apartNs: int64(id/2) * -13 * second,
		}
		k.start()
		w.workers = append(w.workers, k)
	}
	return w
}

// execute runs the scenario with these choices, and judges its end.
func (w *world) execute(c *chooser) error {
	for range max(w.scenario.rounds, 1) {
		w.scripts(w.scenario.before)
		w.rest(0)
	}
	w.scripts(w.scenario.scripts)
	w.beganNs = w.now
	w.now += w.scenario.pause
	w.pass(0)
	for !w.quiet() {
		list := append(w.actions(), w.others()...)
		if len(list) == 0 {
			break
		}
		c.choose(list).do()
	}
	w.rest(cmp.Or(w.scenario.quiet, quietNs))
	return w.judge()
}

func (w *world) scripts(scripts [workers][]request) {
	for i, k := range w.workers {
		k.script = slices.Clone(scripts[i])
	}
}

// quiet reports whether nothing more happens by itself.
func (w *world) quiet() bool {
	for _, k := range w.workers {
		if len(k.script) > 0 || len(k.waiting) > 0 || k.first() >= 0 {
			return false
		}
	}
	return len(w.actions()) == 0
}

// actions returns what workers and the service can do next, the natural action first.
func (w *world) actions() (list []action) {
	for i := range w.workers {
		k := w.workers[(w.last+i)%workers]
		switch {
		case k.resume != nil:
			list = append(list, action{[]any{"worker ", k.id, " goes on"}, k.proceed})
			continue
		case k.stream != nil && (len(k.stream.in) > 0 || k.stream.closed):
			list = append(list, action{[]any{"worker ", k.id, " hears"}, func() { k.call(k.hear) }})
		}
		if w.now >= k.ticks {
			list = append(list, action{[]any{"worker ", k.id, " ticks"}, func() { k.call(k.tick) }})
		}
		if len(k.script) > 0 && w.now >= w.beganNs+k.script[0].atNs {
			list = append(list, action{[]any{"worker ", k.id, " gets ", k.script[0]}, func() { k.call(k.begin) }})
		}
	}
	for _, k := range w.workers {
		if st := k.stream; st != nil && len(st.out) > 0 {
			list = append(list, action{[]any{"the service answers worker ", k.id}, func() { w.serve(k.stream, 1) }})
		}
	}
	return append(list, w.answers()...)
}

// others returns what time and the network can do next. It is natural only if nothing else can
// happen.
func (w *world) others() (list []action) {
	if w.passed < 12 {
		for _, ns := range w.scenario.times {
			if ns >= second && w.scenario.prompt && w.due() {
				continue
			}
			list = append(list, action{[]any{ns / ms, " ms pass"}, func() { w.passed++; w.pass(ns) }})
		}
	} else {
		list = append(list, action{[]any{"time passes"}, func() { w.pass(20 * ms) }})
	}
	if w.scenario.fates != nil && w.faults < 2 {
		list = append(list, w.scenario.fates(w)...)
	}
	if !w.scenario.faults || w.faults == 2 {
		return list
	}
	for _, k := range w.workers {
		if len(k.waiting) > 0 && k.resume == nil {
			list = append(list, action{[]any{"a client of worker ", k.id, " leaves"}, func() { w.faults++; k.call(k.forget) }})
		}
		st := k.stream
		if st == nil || st.closed {
			continue
		}
		list = append(list,
			action{[]any{"the stream of worker ", k.id, " is cut"}, func() { w.faults++; w.cut(st) }},
			action{[]any{"worker ", k.id, " is cut off"}, func() { w.faults++; w.cut(st); k.refused = 2 }})
		if len(st.out) > 0 {
			list = append(list,
				action{[]any{"an answer to worker ", k.id, " is lost"}, func() { w.faults++; w.serve(st, 1); w.cut(st) }},
				action{[]any{"a message of worker ", k.id, " is repeated"}, func() { w.faults++; w.lost = true; w.serve(st, 2) }},
				action{[]any{"a message of worker ", k.id, " is late"}, func() { w.faults++; w.delay(st) }})
		}
	}
	return list
}

// pass lets time pass.
func (w *world) pass(ns int64) {
	w.now += ns
	w.service.Due()
	w.collect()
}

// serve lets the service take the stream's first message n times.
func (w *world) serve(st *stream, times int) {
	w.note(st.out[0])
	for range times {
		if err := st.service.Receive(st.out[0]); err != nil {
			w.t.Fatal(err)
		}
	}
	st.out = st.out[1:]
	w.service.Due()
	w.collect()
}

// collect takes the service's answers.
func (w *world) collect() {
	for _, k := range w.workers {
		for k.stream != nil && !k.stream.closed {
			message := k.stream.service.Next()
			if message == nil {
				break
			}
			k.stream.in = append(k.stream.in, message)
		}
		if st := k.stream; st != nil && !st.closed && st.service.Ending() && len(st.in) == 0 && st.service.Idle() {
			w.cut(st)
		}
	}
}

func (w *world) cut(st *stream) {
	w.lost = true
	st.service.Close()
	st.out, st.in = nil, nil
	st.closed = true
}

// rest lets everything happen that happens by itself, for this long and until no request
// waits.
func (w *world) rest(ns int64) {
	until := w.now + ns
	for n := 0; n < 100_000; n++ {
		if list := w.actions(); len(list) > 0 {
			list[0].do()
			continue
		}
		if w.quiet() && w.now >= until {
			return
		}
		next := w.workers[0].ticks
		for _, k := range w.workers {
			next = min(next, k.ticks)
		}
		w.pass(max(next-w.now, ms))
	}
}
