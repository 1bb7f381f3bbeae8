// Package warnings finds what is valid in a policy and limits less or more than its
// writer means: rules that a client escapes, patterns that never match, windows that
// are never reached, requests that no limit has room for.
//
// Its invariant: it rejects nothing, and is asked only about a policy that has no
// problem.
//
// A method named warn… may add warnings; all others only compare. Of is the entry, and warnRule lists
// what is asked of each rule: answers.go has what concerns settle and holds, client.go what a client
// can choose, limits.go windows and costs, pattern.go patterns that others cover.
package warnings

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Warning is one caution, with its place in the document.
type Warning struct {
	Line, Column  int
	Path, Message string
}

// Of returns the warnings about a policy, and which proxies it is for, in the order of the
// document that both were read of.
func Of(doc *policy.Node, p *policy.Policy, placement *policy.Placement) []Warning {
	root := policy.Place{Node: doc}
	c := &collector{
		slotsByClient: hasSlotsByClient(p), exempt: p.Exempt, exemptAt: root.Field("exempt"), sharing: map[string]int{},
	}
	if p.Usage != nil {
		c.usage = p.Usage.Path
	}
	for i := range p.Rules {
		c.sharing[p.Rules[i].Counter]++
	}
	c.warnProxies(root.Field("proxies"), placement.Proxies)
	c.warnPolicy(root, p)
	rules := root.Field("rules")
	for i := range p.Rules {
		if p.ReportKeys == policy.ReportPlain {
			c.warnCredentials(rules.Item(i).Field("key"), p.Rules[i].Key)
		}
		if p.Rules[i].Mode != policy.ModeOff {
			c.warnRule(rules.Item(i), &p.Rules[i], p.Manage)
		}
	}
	return c.inOrder(doc)
}

// collector collects warnings.
type collector struct {
	found    []found
	compared int // patterns with others

	slotsByClient bool           // see hasSlotsByClient
	exempt        []policy.Match // from all rules
	exemptAt      policy.Place
	usage         string         // the path at which clients ask for their usage
	sharing       map[string]int // rules, by their counter
}

// found is a warning before the paths in it are known.
type found struct {
	at, other policy.Place // other is what otherPlace in the message stands for
	message   string
}

// otherPlace stands in a message for the path of another place, which warnOf has.
const otherPlace = "{other}"

func (c *collector) warn(at policy.Place, message string) { c.warnOf(at, policy.Place{}, message) }

func (c *collector) warnOf(at, other policy.Place, message string) {
	if !c.isFull() {
		c.found = append(c.found, found{at, other, message})
	}
}

func (c *collector) isFull() bool { return len(c.found) == policy.MaxProblems }

// inOrder returns the warnings in the order of the document, with the paths of their places.
func (c *collector) inOrder(doc *policy.Node) (list []Warning) {
	slices.SortStableFunc(c.found, func(a, b found) int {
		return cmp.Or(a.at.Line-b.at.Line, a.at.Column-b.at.Column)
	})
	var at, others []policy.Place
	for _, f := range c.found {
		at, others = append(at, f.at), append(others, f.other)
	}
	paths := doc.Paths(slices.Concat(at, others)) // all at once, as each call walks the document
	for i, f := range c.found {
		message := f.message
		if other := paths[len(at)+i]; other != "" {
			message = strings.Replace(message, otherPlace, other, 1)
		}
		list = append(list, Warning{f.at.Line, f.at.Column, paths[i], message})
	}
	return list
}

// warnPolicy warns of what concerns no single rule.
func (c *collector) warnPolicy(root policy.Place, p *policy.Policy) {
	isCluster := func(r policy.Rule) bool { return r.Scope == policy.ScopeCluster }
	if len(p.Rules) == 0 {
		c.warn(root.Field("rules"), "there is none: every request is allowed")
	}
	if p.Quota != nil && !slices.ContainsFunc(p.Rules, isCluster) {
		c.warn(root.Field("quota"), "no rule has scope cluster, so nothing asks a quota service")
	}
	if p.Manage != nil && p.Manage.Port == 0 {
		c.warn(root.Field("manage"), "without port, management requests are answered on every listener, "+
			"those of clients too: name the port of a listener for them alone, such as render envoy --manage makes")
	}
	c.warnExemptions(root, p.Exempt)
}

func (c *collector) warnRule(v policy.Place, r *policy.Rule, manage *policy.Manage) {
	c.warnBypass(v, r)
	c.warnExemptions(v, r.Exempt)
	c.warnRaised(v, r)
	c.warnIdentities(v.Field("key"), r.Key)
	c.warnMatch(v.Field("match"), r, manage)
	c.warnExempted(v, r)
	if r.Scope == policy.ScopeCluster && r.OnUnavailable == policy.UnavailableAllow {
		c.warn(v.Field("on_unavailable"), "while the quota service is silent, "+
			"every request is allowed and none is counted: local keeps each Envoy to its share of the limit")
	}
	for i := range r.Costs {
		c.warnSpellings(v.Field("cost").Item(i).Field("match").Field("paths"), r.Costs[i].Match.Paths, "cost")
	}
	c.warnTooDear(v, r)
	c.warnShut(v, r)
	c.warnBlock(v, r)
	c.warnAnswers(v, r)
	for i := range r.Limits {
		c.warnInexact(v.Field("limits").Item(i), r.Limits[i])
	}
	c.warnIdle(v.Field("limits"), r)
	overrides := v.Field("overrides")
	for i := range r.Overrides {
		c.warnOverride(overrides.Item(i), &r.Overrides[i], r.Key)
	}
	c.warnCovered(overrides, r.Overrides)
}

// quote is s in quotes, cut where it is too long for a message.
func quote(s string) string { return strconv.Quote(policy.Clip(s)) }
