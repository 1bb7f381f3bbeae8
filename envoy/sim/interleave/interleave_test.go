package interleave

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// toy is a store whose workers are plain functions.
type toy struct {
	*Scheduler
	store *sim.Namespace
}

func newToy() *toy {
	y := &toy{store: sim.NewStore().Namespace("")}
	y.Scheduler = New(func() *sim.Namespace { return y.store })
	return y
}

func (y *toy) get(key string) (string, uint32) {
	y.Park(y.Running(), sim.Access{Key: []byte(key)})
	value, cas, _ := y.store.Get(key)
	return string(value), cas
}

func (y *toy) set(key, value string, cas uint32) bool {
	y.Park(y.Running(), sim.Access{Key: []byte(key), Write: true, CAS: cas})
	return y.store.Set(key, []byte(value), cas)
}

// add appends to a value by compare-and-swap.
func (y *toy) add(key, text string) {
	for {
		value, cas := y.get(key)
		if cas == 0 {
			cas = 1 << 31 // create only
		}
		if y.set(key, value+text, cas) {
			return
		}
	}
}

// space returns a space in which each worker does a few random operations on two
// keys.
func (y *toy) space(r *rand.Rand) Space {
	empty := y.store.Save()
	space := Space{Start: func() { y.store.Restore(empty) }, Judge: func() error { return nil }}
	workers := 2 + r.IntN(2)
	for worker := range workers {
		var script []func()
		steps := 3
		if workers > 2 && worker > 0 {
			steps = 1
		}
		for range 1 + r.IntN(steps) {
			key, text := string(rune('a'+r.IntN(2))), fmt.Sprint(worker)
			switch r.IntN(4) {
			case 0:
				script = append(script, func() { y.get(key) })
			case 1:
				script = append(script, func() { y.set(key, text, 0) })
			case 2:
				script = append(script, func() { y.add(key, text) })
			case 3:
				script = append(script, func() { _, cas := y.get(key); y.set(key, text, cas) })
			}
		}
		space.Scripts = append(space.Scripts, script)
	}
	return space
}

// signature is the same for equal executions and differs for others: for each key,
// its writes in order and between them the sorted reads.
func (s *Scheduler) signature() string {
	var steps [MaxWorkers]int
	keys := map[int][]string{}
	reads := map[int][]string{}
	flush := func(key int) {
		slices.Sort(reads[key])
		keys[key] = append(keys[key], strings.Join(reads[key], "+"))
		reads[key] = nil
	}
	for i := range s.events {
		e := &s.events[i]
		name := fmt.Sprint(e.worker, ".", steps[e.worker])
		steps[e.worker]++
		if e.write {
			flush(e.key)
			keys[e.key] = append(keys[e.key], name)
		} else {
			reads[e.key] = append(reads[e.key], name)
		}
	}
	for key := range reads {
		flush(key)
	}
	return fmt.Sprint(keys)
}

// all runs every order, equal ones too, and returns the signatures and the number
// of orders.
func (s *Scheduler) all(space Space) (seen map[string]bool, orders int) {
	seen = map[string]bool{}
	var prefix []int
	for {
		s.begin(&space)
		var options []set
		for at := 0; s.alive != 0; at++ {
			if at == len(prefix) {
				prefix = append(prefix, s.alive.first())
			}
			options = append(options, s.alive)
			s.step(prefix[at])
		}
		s.parking = false
		seen[s.signature()] = true
		orders++
		at := len(prefix) - 1
		for ; at >= 0; at-- {
			if later := options[at] &^ (only(prefix[at]+1) - 1); later != 0 {
				prefix = append(prefix[:at], later.first())
				break
			}
		}
		if at < 0 {
			return seen, orders
		}
	}
}

// TestTheSearchSeesEachExecutionOnce compares the search with all orders.
func TestTheSearchSeesEachExecutionOnce(t *testing.T) {
	orders, executions := 0, 0
	for seed := range uint64(150) {
		y := newToy()
		space := y.space(rand.New(rand.NewPCG(1, seed)))
		want, n := y.all(space)
		orders += n
		seen := map[string]int{}
		space.Judge = func() error { seen[y.signature()]++; return nil }
		r := y.Explore(space, Bounds{})
		require.True(t, r.Exhaustive)
		require.Equal(t, len(seen), r.Executions, "seed %d: an execution came twice", seed)
		require.Len(t, seen, len(want), "seed %d", seed)
		for signature := range want {
			require.Equal(t, 1, seen[signature], "seed %d: %s", seed, signature)
		}
		executions += r.Executions
	}
	require.Less(t, 4*executions, orders)
}

// lost returns a space in which an update is lost if both workers read before one
// writes.
func lost(y *toy) Space {
	empty := y.store.Save()
	add := func(text string) func() {
		return func() { value, _ := y.get("k"); y.set("k", value+text, 0) }
	}
	return Space{
		Start:   func() { y.store.Restore(empty) },
		Scripts: [][]func(){{add("a")}, {func() { y.get("other") }, add("b")}},
		Judge: func() error {
			if value, _, _ := y.store.Get("k"); len(value) != 2 {
				return errors.New("one is missing")
			}
			return nil
		},
	}
}

func TestAFailureReplays(t *testing.T) {
	y := newToy()
	space := lost(y)
	require.Equal(t, 3, y.Serial(space, func() { require.NoError(t, space.Judge()) }))
	for _, b := range []Bounds{{}, {Max: 1, Random: 100, Seed: 1}} {
		found := y.Explore(space, b)
		require.NotNil(t, found.Failure)
		require.False(t, found.Exhaustive)
		again := y.Replay(space, found.Failure.Choices)
		require.Equal(t, found.Failure, again)
		require.ErrorContains(t, again, "one is missing")
		require.ErrorContains(t, again, "worker 1: set k")
		require.Equal(t, found, y.Explore(space, b), "the whole search repeats")
		require.Equal(t, b.Max > 0, found.Executions == b.Max && found.Random > 0, "the bound holds")
	}
	require.Nil(t, y.Replay(space, ""), "one after the other")
}

// An execution that depends on the one before it is an error.
func TestMoreThanTheChoices(t *testing.T) {
	y := newToy()
	n := 0
	space := Space{
		Start:   func() { n++ },
		Scripts: [][]func(){{func() { y.get(fmt.Sprint(n)); y.get("k") }}, {func() { y.set("k", "", 0) }}},
		Judge:   func() error { return nil },
	}
	require.ErrorContains(t, y.Explore(space, Bounds{}).Failure, "the same choices led to another execution")
}
