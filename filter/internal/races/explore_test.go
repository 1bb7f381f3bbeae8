package races

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// choice is one point of an execution: which one of how many actions happened.
type choice struct{ chosen, of int }

// chooser makes the choices of one execution: first the given ones, then always the natural one,
// or random ones.
type chooser struct {
	given []int
	dice  *rand.Rand // nil = no random choice
	rare  int        // one of so many choices is random
	made  []choice
	trace []string
}

func (c *chooser) choose(list []action) *action {
	at, chosen := len(c.made), 0
	switch {
	case at < len(c.given):
		chosen = min(c.given[at], len(list)-1)
	case c.dice != nil && c.dice.IntN(c.rare) == 0:
		chosen = c.dice.IntN(len(list))
	}
	c.made = append(c.made, choice{chosen, len(list)})
	c.trace = append(c.trace, fmt.Sprint(list[chosen].name...))
	return &list[chosen]
}

// explorer runs a scenario's executions until one is wrong.
type explorer struct {
	run        func(c *chooser) error
	max        int // executions of the search
	executions int
	accesses   int
	failure    error
}

// search runs all executions that begin with the given choices, and then differ from the natural
// one at most so many times.
func (x *explorer) search(given []int, departures int) {
	if x.done() {
		return
	}
	c := &chooser{given: given}
	x.execute(c)
	if departures == 0 {
		return
	}
	for at := len(given); at < len(c.made); at++ {
		for chosen := 1; chosen < c.made[at].of; chosen++ {
			next := slices.Clone(given)
			for len(next) < at {
				next = append(next, 0)
			}
			x.search(append(next, chosen), departures-1)
		}
	}
}

// random runs executions with many, some or few random choices.
func (x *explorer) random(n int, seed uint64) {
	x.max += n
	for i := range uint64(n) {
		if x.done() {
			return
		}
		x.execute(&chooser{dice: rand.New(rand.NewPCG(seed, i)), rare: [...]int{3, 15, 60}[i%3]})
	}
}

func (x *explorer) done() bool { return x.failure != nil || x.executions >= x.max }

func (x *explorer) execute(c *chooser) {
	x.executions++
	err := x.run(c)
	x.accesses += len(c.made)
	if err != nil {
		x.failure = fmt.Errorf("%w\n%s", err, strings.Join(c.trace, "\n"))
	}
}
