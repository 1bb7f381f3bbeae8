package rates

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

// history is the rates of one policy's rules, over a short time.
type history struct {
	mu     sync.Mutex
	at     time.Time // of the newest counts
	keysAt time.Time // of the newest keys
	began  time.Time // the newest point
	times  []time.Time
	rules  map[string]*Rate
	order  []string
	more   int
	failed []manage.Asked
	last   map[process]map[string]Counts // by rule
}

// process is what counts: several of one node id have addresses of their own.
type process struct{ proxy, url string }

// ages are how long ago the newest counts and the newest keys came.
func (h *history) ages(now time.Time) (counts, keys time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Sub(h.at), now.Sub(h.keysAt)
}

// addKeys takes which keys the proxies have denied most.
func (h *history) addKeys(now time.Time, denials []counted.Denials) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keysAt = now
	for _, d := range denials {
		if r := h.rules[d.Rule]; r != nil {
			r.Keys = d.Keys[:min(len(d.Keys), maxKeys)]
		}
	}
}

// add takes what the proxies have answered. The newest point grows until its time is over.
func (h *history) add(now time.Time, rows []manage.Row) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = now
	h.failed = nil
	for i := range rows {
		if rows[i].Error != "" {
			h.failed = append(h.failed, rows[i].Asked)
		}
	}
	if len(h.failed) == len(rows) {
		return // without any answer, nothing is known of the rules
	}
	first := h.last == nil
	next := len(h.times) == 0
	if n := len(h.times); n > 0 && h.times[n-1].Sub(h.began) >= pointFull {
		h.began = h.times[n-1]
		next = true
	}
	h.count(rows, next)
	if first {
		h.began = now
		return
	}
	if next {
		h.times = append(h.times, now)
	} else {
		h.times[len(h.times)-1] = now
	}
	h.times = h.times[max(0, len(h.times)-maxPoints):]
	seconds := max(now.Sub(h.began).Seconds(), 1e-3)
	for _, r := range h.rules {
		r.point(len(h.times), next, r.came.over(seconds))
	}
}

// point makes a rate the newest of so many.
func (r *Rate) point(n int, next bool, rate Counts) {
	if !next && len(r.Rates) > 0 {
		r.Rates = r.Rates[:len(r.Rates)-1]
	}
	r.Rates = append(r.Rates, rate)
	r.Rates = r.Rates[max(0, len(r.Rates)-n):]
	r.Rates = append(make([]Counts, n-len(r.Rates)), r.Rates...)
}

// count adds up what came since the last answers. A proxy that had not answered then adds
// nothing: when it counted is not known.
func (h *history) count(rows []manage.Row, next bool) {
	rules, last := map[string]*Rate{}, map[process]map[string]Counts{}
	h.order = nil
	h.more = 0
	for _, row := range rows {
		if row.Error != "" {
			continue
		}
		of := process{row.Proxy, row.URL}
		before, seen := h.last[of], map[string]Counts{}
		for _, rule := range row.Stats {
			r := rules[rule.Rule]
			switch {
			case r == nil && len(h.order) == maxRated:
				h.more++
				continue
			case r == nil:
				r = &Rate{Rule: rule.Rule}
				if old := h.rules[rule.Rule]; old != nil {
					r.Rates = old.Rates
					r.Keys = old.Keys
					r.came = old.came
				}
				if next {
					r.came = Counts{}
				}
				rules[rule.Rule] = r
				h.order = append(h.order, rule.Rule)
			}
			m := rule.Metrics
			counts := Counts{float64(m["allowed"]), float64(m["denied"]), float64(m["shadow_denied"])}
			seen[rule.Rule] = counts
			r.Total.add(counts)
			if before != nil {
				r.came.add(counts.since(before[rule.Rule]))
			}
		}
		last[of] = seen
	}
	h.rules = rules
	h.last = last
}

// list returns the rules in the policy's order, with the times of their rates.
func (h *history) list() *List {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := &List{Times: slices.Clone(h.times), Rules: []Rate{}, More: h.more, Failed: h.failed}
	for _, name := range h.order {
		r := *h.rules[name]
		r.Rates = slices.Clone(r.Rates)
		all.Rules = append(all.Rules, r)
	}
	return all
}

func (c *Counts) add(o Counts) {
	c.Allowed += o.Allowed
	c.Denied += o.Denied
	c.Shadow += o.Shadow
}

// since is what came on top of older counts. A proxy that restarted has begun at 0.
func (c Counts) since(old Counts) Counts {
	if c.Allowed < old.Allowed || c.Denied < old.Denied || c.Shadow < old.Shadow {
		return c
	}
	return Counts{c.Allowed - old.Allowed, c.Denied - old.Denied, c.Shadow - old.Shadow}
}

func (c Counts) over(seconds float64) Counts {
	return Counts{c.Allowed / seconds, c.Denied / seconds, c.Shadow / seconds}
}
