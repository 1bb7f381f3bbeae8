package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// makeRule makes the rule of a leaf. An example is the second level of this configuration, for a descriptor with the
// entry user, whose part is the header x-user:
//
//	descriptors:
//	- {key: user, value: alice, rate_limit: {unit: minute, requests_per_unit: 5}}
//	- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
//
// Its leaf has the condition x-user = anything. The rule:
//
//	rules:
//	- name: user
//	  key: [{header: x-user}]                 placeAll: any user fits, and each counts apart
//	  limits: [10/minute]
//	  overrides:
//	  - {key: [alice], limits: [5/minute]}    addOverride: alice is the leaf before it
func (d *Descriptor) makeRule(l *leaf, p plan, enforced draft.Enforcement) *draft.Rule {
	t := draft.Terms{
		Name: l.level.Name(), At: l.level.At, Limit: l.level.Limit, Requests: d.Requests, Cost: d.Cost,
		Enforcement: enforced,
	}
	if other := p.mixed[l]; other != nil {
		t.Requests.TurnOff(request.WhyOff("Hosts are compared without their port and case here, so its requests " +
			"cannot be told from those of " + other.level.Name() + "."))
	}
	conditions := placeAll(l.conditions, &t.Requests)
	for _, before := range p.leaves[:slices.Index(p.leaves, l)] {
		switch {
		case before.apart(l): // it has none of the rule's requests
		case p.inRuleOf[before] == l:
			addOverride(&t, before, before.level.Limit, conditions)
		default: // it has a rule of its own, or no limit
			addOverride(&t, before, nil, conditions)
		}
	}
	selectUnmatched(&t, conditions)
	for _, c := range conditions {
		if c.inKey {
			t.Key = append(t.Key, c.value.Part)
		}
	}
	return draft.NewRule(t)
}

// placed is a condition, and where it goes in a rule. The match selects what fits if it can: it cannot ask for a query
// parameter, nor for a second value of a part. The key has the values that count apart:
//
//	the condition    if a match can say it    else
//	alice            in the match             in the key, and overrides select it
//	a*               in both                  in the key, and overrides select it
//	any              in both: nothing to ask
//	a*, shared       in the match             nowhere, and the rule is off
type placed struct {
	condition
	inMatch bool
	inKey   bool
}

// isUnmatched reports whether overrides must select what fits: the key has all values of the part.
func (p placed) isUnmatched() bool { return p.inKey && !p.inMatch }

// placeAll places the conditions of a rule, and adds to its requests what the match can say.
func placeAll(list []condition, requests *request.Selection) (all []placed) {
	for _, c := range list {
		p := placed{condition: c, inMatch: c.addTo(requests)}
		isOneText := c.fits.Kind() == request.Exactly // which needs no counter of its own
		p.inKey = !c.shared && (!isOneText || !p.inMatch)
		if c.shared && !p.inMatch {
			requests.TurnOff(request.WhyOff(c.sharing() + ", and no match can select them."))
		}
		all = append(all, p)
	}
	return all
}

// addTo adds the condition to the match of some requests. It is not ok, and adds nothing, if no match can ask for the
// condition, or if theirs asks for other values of the part. It adds no comment, as AsOverride has none.
func (c condition) addTo(requests *request.Selection) (ok bool) {
	fitting := c.value.Fitting(c.fits)
	asked := fitting.Of(c.value.Part)
	has := requests.Of(c.value.Part)
	switch {
	case fitting.IsOff():
		return false
	case len(has) > 0 && len(asked) > 0:
		return slices.Equal(has, asked)
	}
	fitting.Remarks = request.Remarks{}
	requests.NarrowTo(fitting) // at most one of the two is about the part, so they can be joined
	return true
}

// addOverride adds an override of a rule for the requests of a leaf before that of the rule, or says why there is none.
// Without a limit they are unlimited. An override tells them from others of the rule by the parts of the key. For a
// part that is not in the key:
//
//	the rule's condition   the earlier leaf's   an override
//	alice                  a*                   need not tell: each request of the rule fits a*, and other parts tell
//	al*, shared            a*                   need not tell, as above
//	a*, shared             alice                cannot tell which requests of the one counter are alice's
func addOverride(t *draft.Terms, before *leaf, limit *draft.Limit, conditions []placed) {
	o := draft.Override{Limit: limit}
	for i, c := range conditions {
		earlier := before.conditions[i]
		text, why := earlier.inOverride()
		switch {
		case !c.inKey && c.fits.Within(earlier.fits): // it need not tell
		case !c.inKey:
			t.Requests.TurnOff(request.WhyOff(c.sharing() + ", apart from " + before.level.Name() + ". The import does not " +
				"write such a rule: exempt those requests by hand."))
			return
		case why != "":
			t.Requests.TurnOff(request.WhyOff("It should leave out the requests of "+before.level.Name()+". ") + why)
			return
		default:
			o.Patterns = append(o.Patterns, text)
		}
	}
	t.Overrides = append(t.Overrides, o)
}

// sharing begins a sentence about values that have one counter.
func (c condition) sharing() string {
	return "The values of " + c.value.Part.String() + " that fit " + c.fits.Text() + " share one counter there"
}

// selectUnmatched selects the values that are in the key alone, if there are any, or says why no override can. One
// override gives them the limit, and one behind it makes all other keys unlimited. No match asks for a query parameter,
// so the limit of the user alice in one becomes:
//
//	key: [{query: user}]
//	overrides:
//	- {key: [alice], limits: [5/minute]}
//	- {key: ["*"], unlimited: true}
func selectUnmatched(t *draft.Terms, conditions []placed) {
	if !slices.ContainsFunc(conditions, placed.isUnmatched) {
		return
	}
	var limited, others []string
	for _, c := range conditions {
		if !c.inKey {
			continue
		}
		text := "*" // the match selects the value
		if c.isUnmatched() {
			only, why := c.inOverride()
			if why != "" {
				t.Requests.TurnOff(why)
				return
			}
			text = only
		}
		limited = append(limited, text)
		others = append(others, "*")
	}
	t.Overrides = append(t.Overrides, draft.Override{Patterns: limited, Limit: t.Limit}, draft.Override{Patterns: others})
}
