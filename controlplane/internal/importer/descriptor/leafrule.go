package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// earlierLeaf is a leaf that the limiter takes before that of a rule. Its requests have another limit in the rule.
type earlierLeaf struct {
	*leaf
	limit *draft.Limit // as joinOverrides chose it; nil = unlimited in it, as they have a rule of their own or no limit
}

// makeRule makes the rule of a limit for the requests that meet some conditions: those of a leaf, or of RuleOfAll. The
// terms have its name, place and limit. It adds the others.
func (d *Descriptor) makeRule(
	to *draft.Findings, t draft.Terms, list conditions, earlier []earlierLeaf,
) *draft.Rule {
	r := leafRule{conditions: list, limit: t.Limit, requests: d.Requests}
	for _, c := range list {
		r.place(c)
	}
	for _, e := range earlier {
		r.overrideEarlier(e)
	}
	r.selectUnmatched()
	for _, p := range r.placed {
		if p.isInKey() {
			t.Key = append(t.Key, p.value.Part)
		}
	}
	t.Requests = r.requests
	t.Overrides = r.overrides
	t.Cost = d.Cost
	// Limiters with windows count a request before they compare, so a denied one counts too. At cost 1 that makes no
	// difference: the window is full already. Those with token buckets take nothing for a denied request.
	t.CountDenied = d.Cost > 0 && t.Limit.IsWindowed()
	return draft.NewRule(to, t)
}

// leafRule is the rule of a leaf in the making. An example is the second level of this configuration, for a descriptor
// with the entry user, whose part is the header x-user:
//
//	descriptors:
//	- {key: user, value: alice, rate_limit: {unit: minute, requests_per_unit: 5}}
//	- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
//
// Its leaf has the condition x-user = anything. The rule:
//
//	rules:
//	- name: user
//	  key: [{header: x-user}]                 place: any user fits, and each counts apart
//	  limits: [10/minute]
//	  overrides:
//	  - {key: [alice], limits: [5/minute]}    overrideEarlier: alice is the leaf before it
type leafRule struct {
	conditions
	limit     *draft.Limit
	requests  request.Selection // those of the descriptor, and only those that meet the conditions in the match
	placed    []placed          // the conditions, in their order. Those of the earlier leaves have the same places
	overrides []draft.Override  // the filter takes the first that fits
}

// placed is a condition, and where it goes in the rule.
type placed struct {
	condition
	in place
}

// place is where a condition goes in a rule. Values that count apart need the key. One text, or values that count
// together, need only the match:
//
//	the condition      the descriptor's match has   its place
//	alice              no condition, or alice       inMatch
//	a*, shared         no condition, or a*          inMatch
//	a*                 no condition, or a*          inBoth
//	any                anything                     inBoth: the match need not ask for it
//	alice, a*          another value of the part    inKey
//	a*, shared         another value of the part    nowhere
//
// A part that no match has, as a query parameter, is as one with another value.
type place uint8

const (
	inMatch place = iota // all that fits has one counter
	inBoth               // the match selects what fits, and each value has a counter
	inKey                // each value has a counter, and overrides select what fits: see selectUnmatched
	nowhere              // the rule is off
)

func (p placed) isInKey() bool { return p.in == inBoth || p.in == inKey }

// isUnmatched reports whether the key alone has the condition.
func (p placed) isUnmatched() bool { return p.in == inKey }

// place gives a condition its place, and adds one in the match to the requests.
func (r *leafRule) place(c condition) {
	canMatch := c.addTo(&r.requests)
	hasOneCounter := c.shared || c.pattern.Kind() == request.Exactly
	p := placed{condition: c}
	switch {
	case canMatch && hasOneCounter:
		p.in = inMatch
	case canMatch:
		p.in = inBoth
	case !c.shared:
		p.in = inKey
	default:
		p.in = nowhere
		r.requests.Cannot(c.sharing() + ", and no match can select them.")
	}
	r.placed = append(r.placed, p)
}

// addTo adds the condition to the match of some requests. It is not ok, and adds nothing, if no match can ask for the
// condition, or if theirs asks for other values of the part. It adds no comment, as AsOverride has none.
func (c condition) addTo(requests *request.Selection) (ok bool) {
	fits := c.value.Fitting(c.pattern)
	asked := fits.Match().Of(c.value.Part)
	has := requests.Match().Of(c.value.Part)
	switch {
	case fits.IsOff():
		return false
	case len(has) > 0 && len(asked) > 0:
		return slices.Equal(has, asked)
	}
	fits.Remarks = request.Remarks{}
	requests.NarrowTo(fits) // at most one of the two is about the part, so they can be joined
	return true
}

// overrideEarlier gives the requests of an earlier leaf the limit that they have in the rule, or says why no override
// can. A leaf that is apart from the conditions has none of the rule's requests.
func (r *leafRule) overrideEarlier(e earlierLeaf) {
	if e.apartAsText(r.conditions) {
		return
	}
	if why := r.whyNotOverridden(e.leaf); why != "" {
		r.requests.Cannot(why)
		return
	}
	next := draft.Override{Limit: e.limit}
	for i, p := range r.placed {
		if p.isInKey() {
			next.Patterns = append(next.Patterns, e.conditions[i].asOverride())
		}
	}
	r.overrides = append(r.overrides, next)
}

// asOverride is the condition as an override has it, if there is no whyNoOverride.
func (c condition) asOverride() string {
	text, _ := c.value.AsOverride(c.pattern)
	return text
}

// whyNotOverridden says why no override tells the requests of an earlier leaf from others of the rule, if none does.
// It tells them by the parts of the key. For a part that is not in the key:
//
//	the rule's condition   the earlier leaf's   an override
//	alice                  a*                   need not tell: each request of the rule fits a*, and other parts tell
//	al*, shared            a*                   need not tell, as above
//	a*, shared             alice                cannot tell which requests of the one counter are alice's
func (r *leafRule) whyNotOverridden(before *leaf) (why string) {
	for i, p := range r.placed {
		if !p.isInKey() && !p.pattern.Within(before.conditions[i].pattern) {
			return p.sharing() + ", apart from " + before.level.Name() + ". The import does not write such a rule: exempt " +
				"those requests by hand."
		}
	}
	if why := before.whyNoOverride(); why != "" {
		return "It should leave out the requests of " + before.level.Name() + ". " + why
	}
	return ""
}

// sharing begins a sentence about values that have one counter.
func (c condition) sharing() string {
	return "The values of " + c.value.Part.String() + " that fit " + c.pattern.Text() + " share one counter there"
}

// selectUnmatched selects the values that are in the key alone, or says why no override can. One override gives them
// the limit, and one behind it makes all other keys unlimited. No match asks for a query parameter, so the limit of the
// user alice in one becomes:
//
//	key: [{query: user}]
//	overrides:
//	- {key: [alice], limits: [5/minute]}
//	- {key: ["*"], unlimited: true}
func (r *leafRule) selectUnmatched() {
	if !slices.ContainsFunc(r.placed, placed.isUnmatched) {
		return
	}
	if why := r.whyNoOverride(); why != "" {
		r.requests.Cannot(why)
		return
	}
	var limited, others []string
	for _, p := range r.placed {
		if !p.isInKey() {
			continue
		}
		text := "*" // the match selects the value
		if p.isUnmatched() {
			text = p.asOverride()
		}
		limited = append(limited, text)
		others = append(others, "*")
	}
	r.overrides = append(r.overrides,
		draft.Override{Patterns: limited, Limit: r.limit}, draft.Override{Patterns: others})
}
