package races

import (
	"fmt"
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	holdNs   = 10 * second
	lingerNs = second
)

// holders is what an exact limiter would know of requests that hold units until their answers.
type holders struct {
	gone    []run             // of workers that have ended
	charged map[string]uint32 // units of each key, charged by answers
	heard   map[row]statement
	late    []*stream // that workers have given up while messages were under way
	wrong   error
}

func newHolders() holders {
	return holders{charged: map[string]uint32{}, heard: map[row]statement{}}
}

// run is a request that holds units of one key.
type run struct {
	request
	context uint32
	key     string
	row     row
	hold    hold.Hold
	dueNs   int64 // when its answer comes at the earliest
	endNs   int64 // when the upstream certainly ends; 0 = there is no answer yet
}

// row is the service's record of what a worker holds of a key.
type row struct {
	worker uint64
	key    [16]byte
}

// statement is the last message about a row that the service has got.
type statement struct {
	number uint64
	atNs   int64
}

// holds reports whether units of the key are held until answers are known.
func (k *key) holds() bool {
	return k.definition.Windows[len(k.definition.Windows)-1].Algorithm == limit.Concurrency
}

// isHeld reports whether the run counts as held: it is not over, and not lost. The service counts a
// run as lost if its worker has not reported for as long as a hold lasts.
func (w *world) isHeld(r *run) bool {
	return (r.endNs == 0 || w.now < r.endNs) && (w.scenario.prompt || w.now < w.heard[r.row].atNs+holdNs)
}

// count returns how many units of a key are held and charged.
func (w *world) count(name string) (held, charged uint32) {
	charged = w.charged[name]
	for i := range w.gone {
		switch r := &w.gone[i]; {
		case r.key != name:
		case w.isHeld(r):
			held++
		case r.endNs == 0:
			charged++
		}
	}
	for _, k := range w.workers {
		for i := range k.runs {
			if r := &k.runs[i]; r.key == name && w.isHeld(r) {
				held++
			}
		}
	}
	return held, charged
}

// hold records what an admitted request holds, and checks that it is not too much.
func (k *worker) hold(context uint32, r request, holds []hold.Hold) {
	w := k.world
	for i, name := range []string{r.user, r.tenant}[:len(holds)] {
		k.runs = append(k.runs, run{r, context, name, row{k.row, w.keys[name].hash}, holds[i], w.now + r.lastNs, 0})
		held, charged := w.count(name)
		w.scenario.most = max(w.scenario.most, held)
		windows := w.keys[name].definition.Windows
		for i := range windows {
			v, n := &windows[i], held
			if v.Algorithm != limit.Concurrency {
				n += charged
			}
			if !v.Unlimited && v.Algorithm != limit.Block && n > v.Limit && w.wrong == nil {
				w.wrong = fmt.Errorf("%d units of %d are held and %d charged: of %s", held, v.Limit, charged, name)
			}
		}
	}
}

// answers returns the ends of requests, in order for each worker, and messages that arrive late.
func (w *world) answers() (list []action) {
	for _, k := range w.workers {
		if i := k.first(); k.resume == nil && i >= 0 && w.now >= k.runs[i].dueNs {
			list = append(list, action{
				[]any{"a request of worker ", k.id, " ends"},
				func() { k.call(func() { k.answer(k.runs[i].context) }) },
			})
		}
	}
	for _, st := range w.late {
		if len(st.out) > 0 {
			list = append(list, action{[]any{"what is late arrives"}, func() {
				w.note(st.out[0])
				require.NoError(w.t, st.service.Receive(st.out[0]))
				st.out = st.out[1:]
			}})
		}
	}
	return list
}

// first returns the index of the oldest run without an answer, -1 if there is none.
func (k *worker) first() int {
	return slices.IndexFunc(k.runs, func(r run) bool { return r.endNs == 0 })
}

// answer ends a request: what it holds is settled, or lingers.
func (k *worker) answer(context uint32) {
	k.settle(func(r *run) bool {
		if r.context != context {
			return false
		}
		if r.reset {
			r.endNs = k.world.now + lingerNs
		}
		return !r.reset
	})
	k.flush()
}

func (k *worker) endLingering() {
	k.settle(func(r *run) bool { return r.endNs != 0 && k.world.now >= r.endNs })
}

func (k *worker) settle(isOver func(r *run) bool) {
	all := k.runs
	k.runs = nil
	for i := range all {
		r := &all[i]
		if !isOver(r) {
			k.runs = append(k.runs, *r)
			continue
		}
		r.hold.Settle(r.charged, metrics.ByAnswer, k.now())
		k.world.charged[r.key] += r.charged
	}
}

// flush sends what a callback has left to send.
func (k *worker) flush() {
	if k.engine.Cluster.HasNews() {
		k.client.Flush(k.now())
	}
}

// note records a message that the service gets.
func (w *world) note(message []byte) {
	var m quota.Asks
	require.NoError(w.t, m.Decode(message))
	for _, ask := range m.Asks {
		for _, p := range ask.Parts {
			if of := (row{p.Worker, p.Key}); p.Number > w.heard[of].number {
				w.heard[of] = statement{p.Number, w.now}
			}
		}
	}
}

// delay makes the worker give up its stream while its messages are under way.
func (w *world) delay(st *stream) {
	w.lost = true
	w.late = append(w.late, &stream{service: st.service, out: st.out})
	st.out, st.in = nil, nil
	st.closed = true
}

// due reports whether a worker or the service has something to do beside requests and answers.
func (w *world) due() bool {
	return slices.ContainsFunc(w.workers, func(k *worker) bool {
		st := k.stream
		return k.resume != nil || w.now >= k.ticks || st != nil && (st.closed || len(st.in)+len(st.out) > 0)
	})
}

// traps returns actions in which a VM ends with all that it holds, and another one replaces it.
func (w *world) traps() (list []action) {
	for _, k := range w.workers {
		if k.resume == nil && len(k.runs) > 0 {
			list = append(list, action{[]any{"the VM of worker ", k.id, " traps"}, func() {
				w.faults++
				k.leave()
				clear(k.waiting)
				k.start()
			}})
		}
	}
	return list
}

// leave ends the worker without a report.
func (k *worker) leave() {
	k.world.gone = append(k.world.gone, k.runs...)
	k.runs = nil
	if k.stream != nil {
		k.Cancel()
	}
}

// ends returns the ends of workers whose requests are over, except for holds that linger.
func (w *world) ends() (list []action) {
	for _, k := range w.workers {
		if k.mayEnd() {
			list = append(list, action{[]any{"worker ", k.id, " ends"}, func() { w.faults++; k.end() }})
		}
	}
	return list
}

func (k *worker) mayEnd() bool {
	return !k.ended && k.resume == nil && len(k.waiting) == 0 && k.first() < 0
}

func (k *worker) end() {
	k.client.ExpireAll()
	k.goOn()
	k.client.Close(k.now())
	k.leave()
	k.ended = true
	k.script = nil
	k.ticks = math.MaxInt64
}

// handsOver ends the first worker of a proxy as an old configuration in the VM of the second one.
func (w *world) handsOver() (list []action) {
	for i := 0; i < workers; i += 2 {
		old, heir := w.workers[i], w.workers[i+1]
		if !old.mayEnd() || heir.resume != nil {
			continue
		}
		list = append(list, action{[]any{"worker ", old.id, " hands over"}, func() {
			w.faults++
			old.settle(func(*run) bool { return true }) // what lingers ends with its configuration
			old.end()
			heir.client.Inherit(old.client)
			heir.flush()
		}})
	}
	return list
}

// losesState replaces the service and its store by new ones.
func (w *world) losesState() []action {
	return []action{
		{[]any{"the store loses its state"}, func() { w.faults++; w.service.Forget() }},
		{[]any{"the service loses its state"}, func() {
			w.faults++
			for _, k := range w.workers {
				if k.stream != nil && !k.stream.closed {
					w.cut(k.stream)
				}
			}
			w.service.Forget()
			w.service.Restart()
		}},
	}
}

// judgeHeld returns what is wrong at the end with a key whose holds are all settled.
func (w *world) judgeHeld(name string, k key) error {
	standings := w.standings(k)
	_, charged := w.count(name)
	used, held := standings[0].Used, standings[len(standings)-1].Used
	switch most := charged + uint32(w.scenario.strands); {
	case w.wrong != nil:
		return w.wrong
	case held > 0:
		return fmt.Errorf("%d units are held for ever", held)
	case !w.scenario.keeps:
		return nil
	case used < charged:
		return fmt.Errorf("%d were charged, %d are counted", charged, used)
	case used > most:
		return fmt.Errorf("%d were charged, %d are counted, %d at most", charged, used, most)
	}
	return nil
}
