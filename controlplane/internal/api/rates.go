package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	// pointEvery is how often the proxies are asked, and how much time a point stands for.
	pointEvery = 10 * time.Second
	// pointFull is how much time ends a point: a tick may come a little early.
	pointFull = pointEvery - time.Second
	// freshFor is how long an answer is new enough for a caller who asks.
	freshFor = 3 * time.Second
	// maxPoints of a rule are kept: 20 minutes. With maxRated rules they take 144 kB a policy.
	maxPoints = 120
	maxRated  = 50 // rules
	maxKeys   = 10 // of a rule
	// rateTimeout is how long a proxy may take to answer.
	rateTimeout = 2 * time.Second
)

// Rates answers GET /v1/rates: what the rules of a policy decide, over all proxies.
type Rates struct {
	Times  []time.Time    `json:"times"` // of the rates: each is over the time since the one before
	Rules  []Rate         `json:"rules"`
	More   int            `json:"more,omitempty"`   // rules that are left out
	Failed []manage.Asked `json:"failed,omitempty"` // proxies that have not answered
	Note   string         `json:"note,omitempty"`   // why there is nothing new
}

// Rate is one rule.
type Rate struct {
	Rule   string              `json:"rule"`
	Each   string              `json:"each,omitempty"`   // has the limits by itself: key or proxy; "": all together
	Limits []RatedLimit        `json:"limits,omitempty"` // of the current revision
	Total  Counts              `json:"total"`            // since the proxies began to count
	Rates  []Counts            `json:"rates"`            // requests a second, as many as there are times
	Keys   []counted.DeniedKey `json:"keys,omitempty"`   // denied most lately
	came   Counts              // of the newest point
}

// RatedLimit is a limit in words, and how many requests a second it lets through on average.
type RatedLimit struct {
	Text string  `json:"limit"`
	Rate float64 `json:"rate,omitempty"` // 0: that is not known
}

// Counts are requests of a rule.
type Counts struct {
	Allowed float64 `json:"allowed"`
	Denied  float64 `json:"denied"`
	Shadow  float64 `json:"shadow_denied"`
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

// ratesOf handles GET /v1/rates?policy=NAME.
func (s *server) ratesOf(w http.ResponseWriter, r *request) error {
	name := r.policy()
	if name != store.DefaultPolicy && !slices.Contains(s.XDS.Ledger().Policies(), name) {
		return fmt.Errorf("%w: %s", store.ErrNotFound, s.nothing(name))
	}
	h := s.past(name)
	note, err := s.sample(r.Context(), name, h, freshFor, true)
	if err != nil {
		return err
	}
	limits, err := s.limits(r.Context(), name, h)
	if err != nil {
		return err
	}
	list := h.list()
	list.Note = note
	for i := range list.Rules {
		of := limits[list.Rules[i].Rule]
		list.Rules[i].Each = of.each
		list.Rules[i].Limits = of.limits
	}
	answer(w, http.StatusOK, list)
	return nil
}

// past is what is kept of a policy.
func (s *server) past(name string) *history {
	kept, _ := s.pasts.LoadOrStore(name, newHistory(time.Now))
	return kept.(*history)
}

// keepRates asks the proxies of all policies again and again until ctx ends: so a caller finds
// rates of the time before.
func (s *server) keepRates(ctx context.Context) {
	if s.Fleet == nil {
		return
	}
	ctx = access.NewContext(ctx, access.Caller{Name: "sluice serve"})
	tick := time.NewTicker(pointEvery)
	defer tick.Stop()
	for {
		for _, name := range s.XDS.Ledger().Policies() {
			// What fails here also fails for the next caller, and that one is told.
			_, _ = s.sample(ctx, name, s.past(name), pointEvery/2, false)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample asks the proxies what they have counted, and with keys which keys they have denied
// most, unless the last answers are fresh. The note says why they could not be asked.
func (s *server) sample(
	ctx context.Context, name string, h *history, fresh time.Duration, keys bool,
) (note string, err error) {
	if !h.asked.TryLock() {
		return "", nil // another caller is asking, which takes minutes if many proxies are silent
	}
	defer h.asked.Unlock()
	counts := h.age(&h.at) >= fresh
	keys = keys && h.age(&h.keysAt) >= fresh
	if !counts && !keys {
		return "", nil
	}
	call, targets, err := s.call(ctx, name, rateTimeout)
	if f, ok := errors.AsType[*failure](err); ok && f.code == http.StatusServiceUnavailable {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	defer call.End()
	if counts {
		h.add(call.Counters(ctx, targets, manage.Stats, nil))
	}
	if keys { // there are many, so they are read only for a caller
		h.addKeys(manage.Denials(call.Counters(ctx, targets, manage.Top, nil)))
	}
	return "", nil
}

// history is the rates of one policy's rules, over a short time.
type history struct {
	now   func() time.Time
	asked sync.Mutex // held while proxies are asked

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

	reading  sync.Mutex // held while the limits are read
	revision uint64     // whose limits these are
	limits   map[string]ratedRule
}

// process is what counts: several of one node id have addresses of their own.
type process struct{ proxy, url string }

func newHistory(now func() time.Time) *history { return &history{now: now} }

// age is how long ago one of its times is.
func (h *history) age(of *time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Sub(*of)
}

// addKeys takes which keys the proxies have denied most.
func (h *history) addKeys(denials []counted.Denials) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keysAt = h.now()
	for _, d := range denials {
		if r := h.rules[d.Rule]; r != nil {
			r.Keys = d.Keys[:min(len(d.Keys), maxKeys)]
		}
	}
}

// add takes what the proxies have answered. The newest point grows until its time is over.
func (h *history) add(rows []manage.Row) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
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
func (h *history) list() *Rates {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := &Rates{Times: slices.Clone(h.times), Rules: []Rate{}, More: h.more, Failed: h.failed}
	for _, name := range h.order {
		r := *h.rules[name]
		r.Rates = slices.Clone(r.Rates)
		all.Rules = append(all.Rules, r)
	}
	return all
}

// ratedRule is what the page of a rule says of its limits.
type ratedRule struct {
	each   string
	limits []RatedLimit
}

// limits are those of the current revision of a policy, by rule. To read a policy takes memory
// and time.
func (s *server) limits(ctx context.Context, name string, h *history) (map[string]ratedRule, error) {
	h.reading.Lock()
	defer h.reading.Unlock()
	number := s.XDS.Ledger().ForNewProxy(name)
	if number == h.revision {
		return h.limits, nil
	}
	p, err := s.pushed(ctx, number)
	switch {
	case errors.Is(err, store.ErrDamaged):
		return nil, nil //nolint:nilnil // its limits are not known
	case err != nil:
		return nil, err
	}
	all := map[string]ratedRule{}
	if p != nil {
		for i := range p.Rules {
			r := &p.Rules[i]
			rated := ratedRule{}
			switch {
			case len(r.Key) > 0:
				rated.each = "key"
			case r.Scope == policy.ScopeProxy:
				rated.each = "proxy"
			}
			for j := range r.Limits {
				rated.limits = append(rated.limits, ratedLimit(r, j))
			}
			all[r.Name] = rated
		}
	}
	h.revision = number
	h.limits = all
	return all, nil
}

func ratedLimit(r *policy.Rule, i int) RatedLimit {
	l := &r.Limits[i]
	w := counted.Window{Name: l.Name, Unlimited: l.Unlimited, Months: l.Months(), PerMs: counted.Milliseconds(l.PeriodNs)}
	if l.Algorithm == limit.Concurrency {
		w.PerMs = 0
	}
	w.SetLimit(&l.Window, 0)
	w.SetLimitFrom(r, i, &policy.Subject{Override: -1})
	rated := RatedLimit{Text: manage.LimitText(&w, "unlimited")}
	if l.Requested != nil {
		rated.Text += fmt.Sprintf(", up to %d", l.Most())
	}
	if fixed := len(r.Costs) == 0 && r.Cost.IsFixed() && r.Settle == nil && r.Cost.Fixed > 0; fixed && w.PerMs > 0 {
		rated.Rate = float64(l.Most()) / float64(r.Cost.Fixed) / (float64(l.PeriodNs) / float64(time.Second))
	}
	return rated
}
