package decision

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"fortio.org/fortio/periodic"
)

// demand is a limit that is asked for twice what it admits.
type demand struct {
	limit   string
	most    float64 // that a window admits
	window  time.Duration
	windows int // that are counted
}

// The demands that need the machine for themselves, and those that are measured side by side.
var (
	largeDemands = []demand{{"10000/1s", 10_000, time.Second, 5}, {"1000/1s", 1000, time.Second, 10}}
	smallDemands = []demand{{"100/1m", 100, time.Minute, 1}, {"10/1s", 10, time.Second, 20}, {"100/1s", 100, time.Second, 20}}
)

// pattern says which Envoy gets a request at an instant.
type pattern struct {
	name  string
	proxy func(at time.Time) int
}

var patterns = []pattern{
	{"even", func(time.Time) int { return rand.IntN(proxies) }}, //nolint:gosec // no secret
	{"90-10", func(time.Time) int {
		if rand.IntN(10) > 0 { //nolint:gosec // no secret
			return 0
		}
		return 1 + rand.IntN(proxies-1) //nolint:gosec // no secret
	}},
	{"moving", func(at time.Time) int { return int(at.Unix() % proxies) }},
}

// roamer sends to one Envoy or another, one request at a time.
type roamer struct {
	to          [proxies]*client
	proxy       func(at time.Time) int
	from, until time.Time // what is admitted between counts
	admitted    int
	sent        int
	err         error
}

// Run sends one request: fortio calls it.
func (r *roamer) Run(context.Context, periodic.ThreadID) (ok bool, details string) {
	if r.err != nil {
		return false, ""
	}
	at := time.Now()
	c := r.to[r.proxy(at)]
	before := c.got.admitted
	r.err = c.exchange()
	if !at.Before(r.from) && at.Before(r.until) {
		r.sent++
		r.admitted += c.got.admitted - before
	}
	return r.err == nil, ""
}

// usedLimit is how much of a limit was admitted under a pattern.
type usedLimit struct {
	Limit   string  `json:"limit"`
	Pattern string  `json:"pattern"`
	Demand  float64 `json:"demand"` // requests of what the limit admits
	Used    float64 `json:"used"`   // share of the limit
}

// demand measures every limit under every pattern.
func (b *bench) demand(ctx context.Context) (found []usedLimit, err error) {
	all := slices.Concat(largeDemands, smallDemands)
	var sides []side
	for _, d := range all {
		name := "used-" + strings.ReplaceAll(d.limit, "/", "-")
		sides = append(sides, side{name: name, policy: leasedRule(name, d.limit)})
	}
	f, err := b.startFleet(ctx, sides, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	for i := range all {
		warming, err := f.dial(ctx, sides[i].name)
		if err == nil {
			err = f.warm(warming)
		}
		warming.close()
		if err != nil {
			return nil, err
		}
	}
	for i, d := range largeDemands {
		for _, p := range patterns {
			got, err := f.use(ctx, sides[i].name, d, p)
			if err != nil {
				return nil, err
			}
			found = append(found, got)
		}
	}
	beside, err := f.useAll(ctx, sides[len(largeDemands):])
	found = append(found, beside...)
	for _, u := range found {
		fmt.Printf("%s, %s: asked for %.3f of the limit, used %.4f of it\n", u.Limit, u.Pattern, u.Demand, u.Used)
	}
	return found, err
}

func (f *fleet) useAll(ctx context.Context, sides []side) ([]usedLimit, error) {
	found := make([]usedLimit, len(smallDemands)*len(patterns))
	errs := make([]error, len(found))
	var running sync.WaitGroup
	for i, d := range smallDemands {
		for j, p := range patterns {
			at := i*len(patterns) + j
			running.Go(func() { found[at], errs[at] = f.use(ctx, sides[i].name, d, p) })
		}
	}
	running.Wait()
	return found, errors.Join(errs...)
}

// use asks for twice a limit, from now until enough whole windows are over.
func (f *fleet) use(ctx context.Context, name string, d demand, p pattern) (usedLimit, error) {
	all, err := f.dial(ctx, name)
	defer all.close()
	if err != nil {
		return usedLimit{}, err
	}
	from := time.Now().Truncate(d.window).Add(d.window)
	until := from.Add(time.Duration(d.windows) * d.window)
	var runners []periodic.Runnable
	for i := range connections {
		r := &roamer{proxy: p.proxy, from: from, until: until}
		for j := range r.to {
			r.to[j] = all[j*connections+i]
			r.to[j].keys = [][]byte{[]byte(p.name)}
			if err := r.to[j].conn.SetDeadline(time.Now().Add(patience)); err != nil {
				return usedLimit{}, err
			}
		}
		runners = append(runners, r)
	}
	runAll(runners, periodic.RunnerOptions{QPS: 2 * d.most / d.window.Seconds(), Uniform: true, Duration: time.Until(until)})
	admitted, sent := 0, 0
	for _, r := range runners {
		r := r.(*roamer)
		if r.err != nil {
			return usedLimit{}, r.err
		}
		admitted, sent = admitted+r.admitted, sent+r.sent
	}
	possible := d.most * float64(d.windows)
	return usedLimit{d.limit, p.name, round(float64(sent) / possible), float64(admitted) / possible}, ctx.Err()
}
