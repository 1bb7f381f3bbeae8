// Package canary compares what proxies deny that have a new revision of a policy with what
// others of that policy deny meanwhile.
//
// Its invariant: only requests count that a proxy has decided between two looks at the same
// revision. The package must never import the store, the xDS server or the API.
package canary

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// enough is how many requests a rule must have decided for its share to be judged.
	enough = 100
	// settling is how long VMs of a revision may start after its proxy has accepted it.
	settling = time.Second
	// forgetAfter is how long a proxy is known that says nothing.
	forgetAfter = time.Minute
)

// Count is what a rule has decided.
type Count struct {
	Requests uint64 `json:"requests"`
	Denied   uint64 `json:"denied"`
}

func (c Count) percent() float64 { return 100 * float64(c.Denied) / float64(max(c.Requests, 1)) }

// atMost is the share that others may really deny, if this is what was seen of them. Among few requests, chance may
// have hidden three denials (the rule of three, of 95 % confidence). So a canary that gets enough requests before the
// others is not taken for one that denies more.
func (c Count) atMost() float64 {
	if c.Requests > 0 && c.Requests < enough {
		c.Requests, c.Denied = c.Requests+3, c.Denied+3
	}
	return c.percent()
}

// Rule is what a rule has decided on both sides.
type Rule struct {
	Rule   string `json:"rule"`
	Canary Count  `json:"canary"`
	Others Count  `json:"others"`
}

func (r *Rule) String() string {
	return fmt.Sprintf("%s denies %.1f %% of %d requests in the canary, %.1f %% of %d on other proxies", r.Rule,
		r.Canary.percent(), r.Canary.Requests, r.Others.percent(), r.Others.Requests)
}

// Sample is what a proxy has counted since it started.
type Sample struct {
	Revision uint64
	InCanary bool
	VMStarts uint64
	Rules    map[string]Count
}

// Sight is what has been seen of a canary.
type Sight struct {
	Ended string // the first proxy of the canary whose VM has ended
	last  map[string]look
	rules map[string]*Rule
}

type look struct {
	Sample
	at, first time.Time // first: of the looks in a row at this revision
}

// NewSight returns one that has seen nothing.
func NewSight() Sight { return Sight{last: map[string]look{}, rules: map[string]*Rule{}} }

// Add adds a sample of a proxy.
func (s *Sight) Add(proxy string, at time.Time, n Sample) {
	maps.DeleteFunc(s.last, func(_ string, l look) bool { return at.Sub(l.at) > forgetAfter })
	was, seen := s.last[proxy]
	if !seen || was.Revision != n.Revision {
		s.last[proxy] = look{n, at, at}
		return
	}
	s.last[proxy] = look{n, at, was.first}
	for name, now := range n.Rules {
		r := cmp.Or(s.rules[name], &Rule{Rule: name})
		s.rules[name] = r
		of, before := &r.Others, was.Rules[name]
		if n.InCanary {
			of = &r.Canary
		}
		if now.Requests < before.Requests || now.Denied < before.Denied {
			before = Count{} // the proxy has restarted
		}
		of.Requests, of.Denied = of.Requests+now.Requests-before.Requests, of.Denied+now.Denied-before.Denied
	}
	if n.InCanary && was.at.Sub(was.first) >= settling && n.VMStarts != was.VMStarts {
		s.Ended = cmp.Or(s.Ended, proxy)
	}
}

// Rules returns what the rules have decided, by name.
func (s *Sight) Rules() []Rule {
	list := []Rule{}
	for _, name := range slices.Sorted(maps.Keys(s.rules)) {
		list = append(list, *s.rules[name])
	}
	return list
}

// Judge says which rule denies a share that is more than maxDenied percentage points above that
// of the others, or what is missing for a judgement. Where the others have no request of a rule, or
// do not have it, their share counts as 0.
func (s *Sight) Judge(maxDenied float64) (bad, missing string) {
	missing = fmt.Sprintf("no rule has decided %d requests in the canary yet", enough)
	doubtful := ""
	for _, r := range s.Rules() {
		switch {
		case r.Canary.Requests < enough:
		case r.Canary.percent() > maxDenied+r.Others.atMost():
			return r.String(), ""
		case r.Canary.percent() > maxDenied+r.Others.percent():
			doubtful = cmp.Or(doubtful, r.String()+", which are too few to compare with")
		default:
			missing = ""
		}
	}
	return "", cmp.Or(doubtful, missing)
}
