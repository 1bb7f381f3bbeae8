package envoy

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// TrafficPolicy is the kind of the resources of Envoy Gateway that have limits.
const TrafficPolicy = "BackendTrafficPolicy"

// HasTrafficPolicy reports whether a file has a BackendTrafficPolicy.
func HasTrafficPolicy(files []*source.Document) bool {
	hasOne := func(in *source.Document) bool { return len(in.OfKind(TrafficPolicy)) > 0 }
	return slices.ContainsFunc(files, hasOne)
}

// ReadTrafficPolicies makes rules of BackendTrafficPolicies. Other limits beside them are a
// problem: a policy is made of one kind.
func ReadTrafficPolicies(d *draft.Draft, files []*source.Document, o Options) error {
	g := &gatewayImport{newReader(d, o)}
	return cmp.Or(g.run(files), g.keys.unused())
}

// gatewayImport is an import of BackendTrafficPolicies. An example, of one named shop:
//
//	global:
//	  rules:
//	  - clientSelectors:
//	    - methods: [{value: POST}]                        conditions go to the match
//	      headers: [{name: x-user, type: Distinct}]       what counts apart goes to the key
//	    limit: {requests: 5, unit: Minute}
//
// The rule is
//
//	rules:
//	- name: shop-1
//	  match: {methods: [POST]}
//	  key: [{header: x-user}]
//	  limits: [5/minute]
type gatewayImport struct{ *reader }

// run makes rules of the BackendTrafficPolicies of the files.
func (g *gatewayImport) run(files []*source.Document) error {
	if g.options.Routes != nil || g.options.Listener != "" {
		return errors.New("a " + TrafficPolicy + " names its requests itself: leave out --routes and --listener")
	}
	for _, in := range files {
		for _, r := range in.Resources() {
			if source.TextOf(r.Node, "kind") == TrafficPolicy {
				g.addRules(r)
			} else {
				g.Fail(in.Top(), "holds a "+TrafficPolicy+" and limits of another kind: import each kind by itself")
			}
		}
	}
	return nil
}

// addRules makes the rules of a BackendTrafficPolicy.
func (g *gatewayImport) addRules(r source.Resource) {
	name := source.TextOf(r.Node, "metadata", "name")
	spec := source.FieldOf(r.Node, "spec")
	g.noteTargets(name, spec, r.At)
	limit := source.FieldOf(spec, "rate_limit")
	if limit == nil {
		return
	}
	at := r.At.In("spec.rateLimit")
	o, ok := g.decodeLimit(limit, at)
	if !ok {
		return
	}
	name = draft.Clip(name, 100)
	if o.Global != nil {
		if !g.Cluster {
			g.NoteImport(eachEnvoy)
		}
		global := gatewayList{to: g, rules: o.Global.Rules, name: name, at: at.In("global")}
		g.Rules = append(g.Rules, global.makeRules()...)
	}
	if o.Local != nil {
		local := gatewayList{to: g, rules: o.Local.Rules, name: name, at: at.In("local"), isLocal: true}
		g.Rules = append(g.Rules, local.makeRules()...)
	}
}

// noteTargets notes what a BackendTrafficPolicy is for. Its rules are for all requests.
func (g *gatewayImport) noteTargets(name string, spec *policy.Node, at source.Place) {
	targets := append(source.ItemsOf(spec, "target_refs"), source.ItemsOf(spec, "target_selectors")...)
	if one := source.FieldOf(spec, "target_ref"); one != nil {
		targets = append(targets, one)
	}
	for _, target := range targets {
		which := strings.TrimSpace("the " + source.TextOf(target, "kind") + " " + source.TextOf(target, "name"))
		if source.FieldOf(target, "name") == nil {
			which = "what its targetSelectors select"
		}
		g.Note(at, "the BackendTrafficPolicy "+name+" is only for "+which+": apply the policy to the same, or give "+
			"its rules a match")
	}
}

// gatewayList is one list of rules of a BackendTrafficPolicy.
type gatewayList struct {
	to      *gatewayImport // which gets the rules, and what there is to say of them
	rules   []gatewayRule
	name    string // of the policy
	isLocal bool   // each Envoy counts for itself, by token buckets
	at      source.Place
}

// makeRules makes a rule of each. A local rule without selectors is for the requests of no other rule.
func (list *gatewayList) makeRules() (made []*draft.Rule) {
	isDefault := func(o gatewayRule) bool { return list.isLocal && len(o.Selectors) == 0 }
	var defaults []*draft.Rule
	for i, o := range list.rules {
		if !isDefault(o) {
			d := list.readRule(o, list.at.Item("rules", i))
			made = append(made, list.makeRule(i, &d)...)
		}
	}
	for i, o := range list.rules {
		if !isDefault(o) {
			continue
		}
		d := list.readRule(o, list.at.Item("rules", i))
		if d.ExemptLimited(made, list.ruleName(i), list.to.Findings) {
			defaults = append(defaults, list.makeRule(i, &d)...)
		}
	}
	return append(made, defaults...)
}

// ruleName is the name of the rule at an index.
func (list *gatewayList) ruleName(i int) string { return list.name + "-" + strconv.Itoa(i+1) }

// makeRule makes the rule at an index, for the requests of a descriptor; none if it has no limit.
func (list *gatewayList) makeRule(i int, d *descriptor.Descriptor) []*draft.Rule {
	q := list.readQuota(list.rules[i], d.At)
	if q == nil {
		return nil
	}
	return []*draft.Rule{d.RuleOfAll(list.ruleName(i), q, list.to.Findings)}
}

// readRule reads for which requests a rule is: the descriptor is sent for those that its selectors select.
func (list *gatewayList) readRule(o gatewayRule, at source.Place) descriptor.Descriptor {
	d := descriptor.Descriptor{At: at}
	for i, s := range o.Selectors {
		list.to.readSelector(&d, s, at.Item("clientSelectors", i))
	}
	if o.Cost != nil {
		readCost(&d, o.Cost)
	}
	if o.Shared {
		list.to.Note(at.In("shared"), "ignored: the rule has one counter wherever its policy is applied")
	}
	if o.Fields != nil {
		list.to.Note(at.In("xRateLimitHeaders"), "ignored: a policy has headers for all its rules")
	}
	return d
}

func readCost(d *descriptor.Descriptor, o *gatewayCost) {
	hits := o.Request
	switch {
	case o.Response != nil:
		d.Cannot("It counts what a response says.")
	case hits != nil && (hits.From != "Number" || hits.Number == 0):
		d.Cannot("Its cost is not a number of at least 1.")
	case hits != nil && hits.Number > 1:
		d.Cost = uint64(hits.Number)
	}
}

// readQuota reads the limit of a rule. The place is that of the rule.
func (list *gatewayList) readQuota(o gatewayRule, at source.Place) *draft.Quota {
	if o.Limit == nil {
		list.to.Fail(at, "a rule needs a limit")
		return nil
	}
	unit := strings.ToLower(o.Limit.Unit)
	if lengths[unit] == "" {
		given := strconv.Quote(o.Limit.Unit)
		list.to.Fail(at.In("limit.unit"), "must be Second, Minute, Hour, Day, Week, Month or Year, not "+given)
	}
	q := &draft.Quota{Numbers: draft.Windowed(uint64(o.Limit.Requests), unit), Shadow: o.Shadow, At: at.In("limit")}
	if o.Limit.Metadata != nil {
		q.Cannot("Envoy may take another limit from metadata.")
	}
	if list.isLocal && q.Requests > 0 {
		q.Numbers = draft.TokenBucket(q.Requests, lengths[unit], q.Requests)
	} else {
		list.to.noteCalendar(unit)
	}
	return q
}

// readSelector adds a selector's conditions and parts of keys to a descriptor.
func (g *gatewayImport) readSelector(d *descriptor.Descriptor, o gatewaySelector, at source.Place) {
	for i, h := range o.Headers {
		at := at.Item("headers", i)
		if p, ok := g.readHeaderPart(h.Name, at); ok {
			g.readMatch(d, p, h, at)
		}
	}
	g.readMethods(d, o.Methods, at)
	for i, q := range o.Query {
		at := at.Item("queryParams", i)
		if q.Name == "" {
			g.Fail(at, "a query parameter needs a name")
		}
		g.readMatch(d, request.Part{Kind: request.KindQuery, Name: q.Name}, q, at)
	}
	if o.Path != nil {
		path := *o.Path
		path.Type = cmp.Or(path.Type, "PathPrefix")
		if path.Type != "PathPrefix" || path.Value != "/" {
			g.readMatch(d, request.FullPath, path, at.In("path"))
		}
	}
	if o.SourceCIDR != nil {
		g.readMatch(d, request.ClientIP, *o.SourceCIDR, at.In("sourceCIDR"))
	}
}

// readMethods adds the condition that a request has any of some methods.
func (g *gatewayImport) readMethods(d *descriptor.Descriptor, list []gatewayMatch, at source.Place) {
	var methods []string
	for i, m := range list {
		switch {
		case m.Invert && len(list) > 1:
			d.CannotMatch("they have one of several methods, and not another")
		case m.Invert:
			d.Exclude(request.Method, request.Exact(m.Value))
		case request.HasOnly(m.Value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
			methods = append(methods, m.Value)
		default:
			g.Fail(at.Item("methods", i), "must be a method such as GET, not "+strconv.Quote(m.Value))
		}
	}
	if methods != nil {
		d.Selection = d.And(request.Selection{Match: request.Method.Matching(request.ExactAll(methods)...)})
	}
}

// readMatch adds one condition: on a part of the request, or that each value of
// the part counts for itself.
func (g *gatewayImport) readMatch(d *descriptor.Descriptor, p request.Part, o gatewayMatch, at source.Place) {
	v := request.Exact(o.Value)
	switch o.Type {
	case "Distinct":
		d.Entries = append(d.Entries, descriptor.Entry{Key: string(p.Kind) + p.Name, Part: &p})
		if v.Text == "" {
			return
		}
	case "PathPrefix":
		v = request.OrBelow(strings.TrimSuffix(o.Value, "/"))
	case "RegularExpression":
		var ok bool
		v, ok = g.regex(o.Value, at)
		if !ok {
			return
		}
	case "Exact", "":
	default:
		g.Fail(at, "type must be Exact, Distinct, PathPrefix or RegularExpression, not "+strconv.Quote(o.Type))
		return
	}
	if p.Kind == request.KindClientIP {
		network, err := netip.ParsePrefix(o.Value)
		if err != nil {
			g.Fail(at, "value must be a network such as 10.0.0.0/8, not "+strconv.Quote(o.Value))
			return
		}
		v.Text = network.Masked().String()
	}
	if o.Invert {
		d.Exclude(p, v)
	} else {
		d.Require(p, v)
	}
}
