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
)

// Count is what a rule has decided.
type Count struct {
	Requests uint64 `json:"requests"`
	Denied   uint64 `json:"denied"`
}

func (c Count) percent() float64 { return 100 * float64(c.Denied) / float64(max(c.Requests, 1)) }

func (c Count) String() string { return fmt.Sprintf("%.1f %% of %d requests", c.percent(), c.Requests) }

// Rule is what a rule has decided on both sides.
type Rule struct {
	Rule   string `json:"rule"`
	Canary Count  `json:"canary"`
	Others *Count `json:"others,omitempty"` // nil: they have no such rule
}

func (r *Rule) String() string {
	if r.Others == nil {
		return fmt.Sprintf("%s denies %s there; others do not have it", r.Rule, r.Canary)
	}
	return fmt.Sprintf("%s denies %s there, %s elsewhere", r.Rule, r.Canary, *r.Others)
}

// Sample is what a proxy has counted since it started.
type Sample struct {
	Revision uint64
	InCanary bool
	VMStarts uint64
	Rules    map[string]Count
}

// Sight is what has been seen of a canary. The zero value has seen nothing.
type Sight struct {
	Ended string // a proxy of the canary of which a VM has ended, the first such
	last  map[string]look
	rules map[string]*Rule
}

type look struct {
	Sample
	at, first time.Time // first: of the looks in a row at this revision
}

// Add adds a sample of a proxy.
func (s *Sight) Add(proxy string, at time.Time, n Sample) {
	if s.last == nil {
		s.last, s.rules = map[string]look{}, map[string]*Rule{}
	}
	was, seen := s.last[proxy]
	if seen = seen && was.Revision == n.Revision; !seen {
		was = look{first: at}
	}
	s.last[proxy] = look{n, at, was.first}
	for name, now := range n.Rules {
		r := s.rules[name]
		if r == nil {
			r = &Rule{Rule: name}
			s.rules[name] = r
		}
		of := &r.Canary
		if !n.InCanary {
			r.Others = cmp.Or(r.Others, &Count{})
			of = r.Others
		}
		before := was.Rules[name]
		if now.Requests < before.Requests || now.Denied < before.Denied {
			before = Count{} // the proxy has started anew
		}
		if seen {
			of.Requests, of.Denied = of.Requests+now.Requests-before.Requests, of.Denied+now.Denied-before.Denied
		}
	}
	if seen && n.InCanary && was.at.Sub(was.first) >= settling && n.VMStarts != was.VMStarts {
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

// Judge says which rule denies a share that is more than maxDenied percentage points above
// that of the others, or what is missing for a judgement.
func (s *Sight) Judge(maxDenied float64) (bad, missing string) {
	missing = fmt.Sprintf("no rule has decided %d requests yet both there and elsewhere", enough)
	for _, r := range s.Rules() {
		others := cmp.Or(r.Others, &Count{})
		if r.Canary.Requests < enough || r.Others != nil && others.Requests < enough {
			continue
		}
		if r.Canary.percent() > others.percent()+maxDenied {
			return r.String(), ""
		}
		missing = ""
	}
	return "", missing
}
