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
	// settling is how long VMs of a revision may start after the first look at it.
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

// Process is a proxy that counts: several of one node id have addresses of their own.
type Process struct{ Node, URL string }

// Sample is what a proxy has counted since it started.
type Sample struct {
	Revision uint64
	InCanary bool
	VMStarts uint64
	Rules    map[string]Count
}

// Sight is what has been seen of a canary.
type Sight struct {
	Ended Process // the first of the canary whose VM has ended; zero: none has
	last  map[Process]look
	rules map[string]*Rule
}

// look is the last one at a proxy. Looks at one that is in the canary from revision 2 on:
//
//	at     revision  VM starts
//	0.0 s  1         5
//	1.0 s  2         6          first at revision 2: what came since 0.0 s is partly of revision 1
//	1.5 s  2         10         counts. Its VMs were still starting: the look before was the first
//	2.5 s  2         10         counts
//	3.5 s  2         11         counts. A VM has ended and another one started: the look before was settled
type look struct {
	Sample
	at    time.Time
	first time.Time // of the looks in a row at this revision
}

// isSettled says whether all VMs of the revision had started by then.
func (l *look) isSettled() bool { return l.at.Sub(l.first) >= settling }

// NewSight returns one that has seen nothing.
func NewSight() Sight { return Sight{last: map[Process]look{}, rules: map[string]*Rule{}} }

// Add adds a sample of a proxy.
func (s *Sight) Add(proxy Process, at time.Time, n Sample) {
	maps.DeleteFunc(s.last, func(_ Process, l look) bool { return at.Sub(l.at) > forgetAfter })
	was, seen := s.last[proxy]
	if !seen || was.Revision != n.Revision {
		s.last[proxy] = look{Sample: n, at: at, first: at}
		return
	}
	s.last[proxy] = look{Sample: n, at: at, first: was.first}
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
	if n.InCanary && was.isSettled() && n.VMStarts != was.VMStarts {
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
