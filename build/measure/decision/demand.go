package decision

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"fortio.org/fortio/periodic"
)

// demands are limits of a second that are asked for twice what they admit, and how many
// windows are counted.
var demands = []struct{ most, windows int }{{10_000, 5}, {1000, 10}, {100, 20}, {10, 20}}

// patterns say which Envoy gets a request at an instant.
var patterns = []struct {
	name  string
	proxy func(at time.Time) int
}{
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
	to             [proxies]*client
	proxy          func(at time.Time) int
	from, until    time.Time // what is admitted between counts
	admitted, sent int
	err            error
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
	limit, pattern string
	asked, used    float64 // of what the limit admits
}

// demand measures every limit under every pattern.
func (b *bench) demand(ctx context.Context) (found []usedLimit, err error) {
	var sides []side
	for _, d := range demands {
		limit := fmt.Sprint(d.most, "/1s")
		sides = append(sides, side{name: limit, policy: leasedRule("used-"+strings.ReplaceAll(limit, "/", "-"), limit)})
	}
	f, err := b.startFleet(ctx, sides, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	for i, d := range demands {
		all, err := f.dial(ctx, sides[i].name)
		if err == nil {
			err = f.warm(all)
		}
		for _, p := range patterns {
			u := usedLimit{limit: sides[i].name, pattern: p.name}
			if err == nil {
				u.asked, u.used, err = use(all, d.most, d.windows, p.proxy, []byte(p.name))
			}
			found = append(found, u)
		}
		all.close()
		if err != nil || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
	}
	return found, nil
}

// use asks for twice a limit, from now until enough whole windows are over.
func use(all clients, most, windows int, proxy func(time.Time) int, key []byte) (asked, used float64, err error) {
	from := time.Now().Truncate(time.Second).Add(time.Second)
	until := from.Add(time.Duration(windows) * time.Second)
	var runners []periodic.Runnable
	for i := range connections {
		r := &roamer{proxy: proxy, from: from, until: until}
		for j := range r.to {
			r.to[j] = all[j*connections+i]
			r.to[j].keys, r.to[j].next = [][]byte{key}, 0
			if err := r.to[j].conn.SetDeadline(time.Now().Add(patience)); err != nil {
				return 0, 0, err
			}
		}
		runners = append(runners, r)
	}
	runAll(runners, periodic.RunnerOptions{QPS: 2 * float64(most), Uniform: true, Duration: time.Until(until)})
	possible := float64(most * windows)
	for _, r := range runners {
		r := r.(*roamer)
		asked, used, err = asked+float64(r.sent)/possible, used+float64(r.admitted)/possible, errors.Join(err, r.err)
	}
	return asked, used, err
}
