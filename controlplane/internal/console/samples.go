package console

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

const (
	// sampleEvery is the shortest time between two questions to the proxies.
	sampleEvery = 3 * time.Second
	// forgetAfter is how long nobody may look before the samples are too old to go on.
	forgetAfter = time.Minute
	maxSamples  = 100 // of a rule
	maxPlotted  = 50  // rules
	maxKeys     = 10  // of a rule
)

// Counts are requests of a rule.
type Counts struct{ Allowed, Denied, Shadow float64 }

func (c *Counts) add(o Counts) {
	c.Allowed += o.Allowed
	c.Denied += o.Denied
	c.Shadow += o.Shadow
}

// since is what came on top of older counts. A proxy that counts anew has begun at 0.
func (c Counts) since(old Counts) Counts {
	if c.Allowed < old.Allowed || c.Denied < old.Denied || c.Shadow < old.Shadow {
		return c
	}
	return Counts{c.Allowed - old.Allowed, c.Denied - old.Denied, c.Shadow - old.Shadow}
}

func (c Counts) over(seconds float64) Counts {
	return Counts{c.Allowed / seconds, c.Denied / seconds, c.Shadow / seconds}
}

// Rule is what is known of a rule: its counts since the proxies began, and how many
// requests a second there were at each sample.
type Rule struct {
	Name  string
	Total Counts
	Rates []Counts           // as many as there are times
	Keys  []answer.DeniedKey // denied most lately, up to maxKeys
	came  Counts             // since the sample before
}

// Now is the newest rate.
func (r *Rule) Now() Counts {
	if len(r.Rates) == 0 {
		return Counts{}
	}
	return r.Rates[len(r.Rates)-1]
}

// samples are those of all visitors. They are taken while somebody looks.
type samples struct {
	now   func() time.Time
	asked sync.Mutex // held while proxies are asked

	mu     sync.Mutex
	at     time.Time
	times  []time.Time
	rules  map[string]*Rule
	order  []string
	more   int // rules that are not plotted
	failed []policyfile.Problem
	last   map[string]map[string]Counts // by proxy and rule
}

func newSamples(now func() time.Time) *samples { return &samples{now: now} }

// due says whether it is time for another sample.
func (s *samples) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.at) >= sampleEvery
}

// addKeys takes which keys the proxies have denied most.
func (s *samples) addKeys(denials []answer.Denials) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range denials {
		if r := s.rules[d.Rule]; r != nil {
			r.Keys = d.Keys[:min(len(d.Keys), maxKeys)]
		}
	}
}

// add takes what the proxies have answered. A proxy that was not asked before adds no
// rate: when it counted is not known.
func (s *samples) add(c *api.Counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Sub(s.at) > forgetAfter {
		s.rules, s.last, s.times = nil, nil, nil
	}
	seconds, first := now.Sub(s.at).Seconds(), s.last == nil
	rules, last := map[string]*Rule{}, map[string]map[string]Counts{}
	s.at, s.failed, s.order, s.more = now, nil, nil, 0
	for _, row := range c.Proxies {
		if row.Error != "" {
			s.failed = append(s.failed, policyfile.Problem{Path: row.Proxy, Message: row.Error})
			continue
		}
		before, counted := s.last[row.Proxy], map[string]Counts{}
		for _, rule := range row.Stats {
			r := rules[rule.Rule]
			switch {
			case r == nil && len(s.order) == maxPlotted:
				s.more++
				continue
			case r == nil:
				r = &Rule{Name: rule.Rule}
				if old := s.rules[rule.Rule]; old != nil {
					r.Rates, r.Keys = old.Rates, old.Keys
				}
				rules[rule.Rule], s.order = r, append(s.order, rule.Rule)
			}
			m := rule.Metrics
			counts := Counts{float64(m["allowed"]), float64(m["denied"]), float64(m["shadow_denied"])}
			counted[rule.Rule] = counts
			r.Total.add(counts)
			if before != nil {
				r.came.add(counts.since(before[rule.Rule]))
			}
		}
		last[row.Proxy] = counted
	}
	s.rules, s.last = rules, last
	if first {
		return
	}
	s.times = append(s.times, now)
	s.times = s.times[max(0, len(s.times)-maxSamples):]
	for _, r := range rules {
		r.Rates = append(r.Rates, r.came.over(seconds))
		r.Rates = r.Rates[max(0, len(r.Rates)-len(s.times)):]
		r.Rates = append(make([]Counts, len(s.times)-len(r.Rates)), r.Rates...)
	}
}

// list returns the rules in the policy's order, with the times of their rates.
func (s *samples) list() (rules []Rule, times []time.Time, failed []policyfile.Problem, more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.order {
		r := *s.rules[name]
		r.Rates = slices.Clone(r.Rates)
		rules = append(rules, r)
	}
	return rules, slices.Clone(s.times), s.failed, s.more
}
