// Package interleave runs scripts on the workers of a simulated Envoy in every
// possible order of their reads and writes of shared data.
//
// Its invariant: an execution is a function of its choices alone. Every worker stops
// before each of its accesses to shared data, one worker runs at a time, and between
// two accesses a worker touches nothing that others see. So the list of choices,
// which worker went at each access, replays the execution.
//
// It must never import the filter, the engine or a policy: the caller knows what an
// outcome must be.
package interleave

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// MaxWorkers is how many scripts can run side by side.
const MaxWorkers = 8

// Nobody is the result of Running while no script runs, as in Start and Judge.
const Nobody = -1

// Space is a set of executions: those of the workers' scripts from one starting
// state. Worker i is VM i of the host.
type Space struct {
	// Start restores the starting state.
	Start func()
	// Scripts are the steps of each worker. A step may make any number of accesses,
	// and must not wait for another worker.
	Scripts [][]func()
	// Judge returns an error if the state at the end of an execution is wrong.
	Judge func() error
}

// Scheduler decides which worker goes next. Its Park is the host's OnShared.
type Scheduler struct {
	store   func() *sim.Namespace
	running int
	parking bool // scripts stop before accesses

	keys    map[string]int
	pending [MaxWorkers]access
	yields  [MaxWorkers]func(struct{}) bool
	resumes [MaxWorkers]func() (struct{}, bool)
	alive   set

	events []event // accesses of this execution
}

// access is a read or write that a worker has stopped before.
type access struct {
	key   int
	name  string
	write bool
	cas   uint32
}

// set is a set of workers.
type set uint16

func only(worker int) set            { return 1 << worker }
func (s set) has(worker int) bool    { return s&only(worker) != 0 }
func (s set) first() (worker int)    { return bits.TrailingZeros16(uint16(s)) }
func (s set) without(worker int) set { return s &^ only(worker) }
func (s set) len() (n int)           { return bits.OnesCount16(uint16(s)) }

// nth returns the n-th smallest worker of the set, from 0.
func (s set) nth(n int) int {
	for ; n > 0; n-- {
		s &= s - 1
	}
	return s.first()
}

// New returns a scheduler. store returns the shared data of its workers. It is not
// called before an execution begins, so the host can be made after the scheduler.
func New(store func() *sim.Namespace) *Scheduler {
	return &Scheduler{store: store, running: Nobody, keys: map[string]int{}}
}

// Running returns the worker whose script runs, or Nobody.
func (s *Scheduler) Running() int { return s.running }

// Park stops the running worker before its access until its turn comes. It does
// nothing outside an execution.
func (s *Scheduler) Park(vm int, a sim.Access) {
	if !s.parking || vm != s.running {
		return
	}
	id, known := s.keys[string(a.Key)]
	if !known {
		id = len(s.keys)
		s.keys[string(a.Key)] = id
	}
	s.pending[vm] = access{id, string(a.Key), a.Write, a.CAS}
	s.yields[vm](struct{}{})
}

// begin starts an execution: every script runs up to its first access.
func (s *Scheduler) begin(space *Space) {
	s.running, s.parking = Nobody, false
	space.Start()
	s.events = s.events[:0]
	s.alive = 0
	s.parking = true
	for worker, script := range space.Scripts {
		s.resumes[worker], _ = iter.Pull(func(yield func(struct{}) bool) {
			s.yields[worker] = yield
			for _, step := range script {
				step()
			}
		})
		s.alive |= only(worker)
		s.resume(worker)
	}
}

// resume lets a worker run up to its next access.
func (s *Scheduler) resume(worker int) {
	s.running = worker
	if _, more := s.resumes[worker](); !more {
		s.alive = s.alive.without(worker)
	}
	s.running = Nobody
}

// step lets a worker make the access that it has stopped before.
func (s *Scheduler) step(worker int) {
	e := event{worker: worker, access: s.pending[worker]}
	e.write = s.writes(worker)
	s.events = append(s.events, e)
	s.resume(worker)
}

// writes reports whether the access that the worker has stopped before would change
// the store. A compare-and-swap whose cas is outdated only reads, now and later.
func (s *Scheduler) writes(worker int) bool {
	a := &s.pending[worker]
	if !a.write || a.cas == 0 {
		return a.write
	}
	_, cas, exists := s.store().Get(a.name)
	return !exists || cas == a.cas
}

// judge ends an execution and returns what is wrong with it.
func (s *Scheduler) judge(space *Space) *Failure {
	s.parking = false
	err := space.Judge()
	if err == nil {
		return nil
	}
	return s.failure(err)
}

func (s *Scheduler) failure(err error) *Failure {
	f := &Failure{Err: err}
	for _, e := range s.events {
		f.Choices += strconv.Itoa(e.worker)
		f.trace += "\n" + e.String()
	}
	return f
}

// Failure is an execution that was judged wrong.
type Failure struct {
	Choices string // the worker at each access, one digit each, for Replay
	Err     error
	trace   string // the accesses
}

func (f *Failure) Error() string { return fmt.Sprintf("%v\nchoices %s%s", f.Err, f.Choices, f.trace) }

func (f *Failure) Unwrap() error { return f.Err }

// Replay runs the execution with these choices. If they end, or name a worker that
// is not there, the first remaining worker goes.
func (s *Scheduler) Replay(space Space, choices string) *Failure {
	s.begin(&space)
	for at := 0; s.alive != 0; at++ {
		worker := s.alive.first()
		if at < len(choices) && choices[at] >= '0' && s.alive.has(int(choices[at]-'0')) {
			worker = int(choices[at] - '0')
		}
		s.step(worker)
	}
	return s.judge(&space)
}

// Serial runs the scripts in every order of whole steps, so without any race, and
// calls visit at the end of each. It returns the number of orders.
func (s *Scheduler) Serial(space Space, visit func()) (orders int) {
	at := make([]int, len(space.Scripts))
	var order []int
	var extend func()
	extend = func() {
		last := true
		for worker, script := range space.Scripts {
			if at[worker] < len(script) {
				last = false
				at[worker]++
				order = append(order, worker)
				extend()
				order = order[:len(order)-1]
				at[worker]--
			}
		}
		if last {
			orders++
			s.serial(&space, slices.Clone(order))
			visit()
		}
	}
	extend()
	return orders
}

func (s *Scheduler) serial(space *Space, order []int) {
	s.running, s.parking = Nobody, false
	space.Start()
	var at [MaxWorkers]int
	for _, worker := range order {
		s.running = worker
		space.Scripts[worker][at[worker]]()
		at[worker]++
	}
	s.running = Nobody
}
