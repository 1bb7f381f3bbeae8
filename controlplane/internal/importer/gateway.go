package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// gatewayLimit is the rateLimit of a BackendTrafficPolicy of Envoy Gateway.
type gatewayLimit struct {
	Type   string        `json:"type"`
	Global *gatewayRules `json:"global"`
	Local  *gatewayRules `json:"local"`
}

type gatewayRules struct {
	Rules []*gatewayRule `json:"rules"`
}

type gatewayRule struct {
	Selectors []*gatewaySelector `json:"clientSelectors"`
	Limit     *gatewayQuota      `json:"limit"`
	Cost      *gatewayCost       `json:"cost"`
	Shared    bool               `json:"shared"`
	Shadow    bool               `json:"shadowMode"`
	Fields    json.RawMessage    `json:"xRateLimitHeaders"`
}

type gatewayCost struct {
	Request  *gatewayHits `json:"request"`
	Response *gatewayHits `json:"response"`
}

type gatewayHits struct {
	From     string          `json:"from"`
	Number   uint32          `json:"number"`
	Metadata json.RawMessage `json:"metadata"`
}

type gatewayQuota struct {
	Requests uint32          `json:"requests"`
	Unit     string          `json:"unit"`
	Metadata json.RawMessage `json:"fromMetadata"`
}

// gatewaySelector says which requests a rule is for: those that meet all of its conditions.
type gatewaySelector struct {
	Headers    []*gatewayMatch `json:"headers"`
	Methods    []*gatewayMatch `json:"methods"`
	Path       *gatewayMatch   `json:"path"`
	SourceCIDR *gatewayMatch   `json:"sourceCIDR"`
	Query      []*gatewayMatch `json:"queryParams"`
}

type gatewayMatch struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Value  string `json:"value"`
	Invert bool   `json:"invert"`
}

const trafficPolicy = "BackendTrafficPolicy"

// hasTrafficPolicies reports whether a file has a BackendTrafficPolicy.
func (j *job) hasTrafficPolicies() bool {
	return slices.ContainsFunc(j.files, func(in *source) bool { return len(ofKind(in.root, trafficPolicy)) > 0 })
}

// trafficPolicies makes rules of BackendTrafficPolicies. Other limits beside them are a
// problem: a policy is made of one kind.
func (j *job) trafficPolicies() error {
	j.draft.from = trafficPolicy
	if j.options.Routes != nil || j.options.Listener != "" {
		return errors.New("a " + trafficPolicy + " names its requests itself: leave out --routes and --listener")
	}
	for _, in := range j.files {
		for _, n := range resources(in.root) {
			if textOf(n, "kind") == trafficPolicy {
				j.draft.rules = append(j.draft.rules, j.trafficPolicy(n, in.top())...)
			} else {
				j.fail(in.top(), "holds a "+trafficPolicy+" and limits of another kind: import each kind by itself")
			}
		}
	}
	return nil
}

// trafficPolicy makes rules of a BackendTrafficPolicy. The place is that of its file.
func (r *reader) trafficPolicy(n *policy.Node, file place) (list []rule) {
	name := textOf(n, "metadata", "name")
	spec := fieldOf(n, "spec")
	targets := append(itemsOf(spec, "target_refs"), itemsOf(spec, "target_selectors")...)
	if one := fieldOf(spec, "target_ref"); one != nil {
		targets = append(targets, one)
	}
	for _, target := range targets {
		which := strings.TrimSpace("the " + textOf(target, "kind") + " " + textOf(target, "name"))
		if fieldOf(target, "name") == nil {
			which = "what its targetSelectors select"
		}
		r.note(file, "the BackendTrafficPolicy "+name+" is only for "+which+": apply the policy to the same, or give "+
			"its rules a match")
	}
	limit := fieldOf(spec, "rate_limit")
	if limit == nil {
		return nil
	}
	at := file.in("spec.rateLimit")
	o := &gatewayLimit{}
	if err := strictly(limit, o); err != nil {
		r.fail(at, strings.TrimPrefix(err.Error(), "json: "))
		return nil
	}
	if o.Global != nil && !r.cluster {
		r.note(place{}, eachEnvoy)
	}
	if o.Global != nil {
		list = r.gatewayRules(o.Global, at.in("global"), clip(name, 100), false)
	}
	if o.Local != nil {
		list = append(list, r.gatewayRules(o.Local, at.in("local"), clip(name, 100), true)...)
	}
	return list
}

// strictly decodes an object. An unknown field is an error.
func strictly(n *policy.Node, to any) error {
	d := json.NewDecoder(bytes.NewReader(policy.AppendJSON(nil, n)))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// gatewayRules makes a rule of each. A local rule without selectors is for the
// requests of no other rule.
func (r *reader) gatewayRules(all *gatewayRules, at place, name string, isLocal bool) (list []rule) {
	isDefault := func(o *gatewayRule) bool { return isLocal && len(o.Selectors) == 0 }
	var defaults []rule
	for i, o := range all.Rules {
		if !isDefault(o) {
			d := r.gatewayDescriptor(o, at.item("rules", i))
			list = append(list, r.gatewayRule(&d, o, name+"-"+strconv.Itoa(i+1), isLocal)...)
		}
	}
	for i, o := range all.Rules {
		if !isDefault(o) {
			continue
		}
		d := r.gatewayDescriptor(o, at.item("rules", i))
		if d.exemptLimited(list) {
			defaults = append(defaults, r.gatewayRule(&d, o, name+"-"+strconv.Itoa(i+1), isLocal)...)
		}
	}
	return append(list, defaults...)
}

// gatewayRule makes a rule for the requests of a descriptor. Its conditions are in the descriptor's
// selection, so one leaf has all its requests: each part of the key, with any value.
func (r *reader) gatewayRule(d *descriptor, o *gatewayRule, name string, isLocal bool) []rule {
	l := leafOfRest(d.entries)
	l.name = name
	l.at = d.at
	l.quota = r.gatewayQuota(o, d.at, isLocal)
	return d.rules([]leaf{l}, r)
}

// gatewayDescriptor is for the requests that a rule's selectors select.
func (r *reader) gatewayDescriptor(o *gatewayRule, at place) descriptor {
	d := descriptor{at: at}
	for i, s := range o.Selectors {
		r.readSelector(&d, s, at.item("clientSelectors", i))
	}
	if o.Cost != nil {
		d.readCost(o.Cost)
	}
	if o.Shared {
		r.note(at.in("shared"), "ignored: the rule has one counter wherever its policy is applied")
	}
	if o.Fields != nil {
		r.note(at.in("xRateLimitHeaders"), "ignored: a policy has headers for all its rules")
	}
	return d
}

func (d *descriptor) readCost(o *gatewayCost) {
	hits := o.Request
	switch {
	case o.Response != nil:
		d.cannot("It counts what a response says.")
	case hits != nil && (hits.From != "Number" || hits.Number == 0):
		d.cannot("Its cost is not a number of at least 1.")
	case hits != nil && hits.Number > 1:
		d.cost = uint64(hits.Number)
	}
}

func (r *reader) gatewayQuota(o *gatewayRule, at place, isLocal bool) *quota {
	if o.Limit == nil {
		r.fail(at, "a rule needs a limit")
		return nil
	}
	unit := strings.ToLower(o.Limit.Unit)
	if lengths[unit] == "" {
		given := strconv.Quote(o.Limit.Unit)
		r.fail(at.in("limit.unit"), "must be Second, Minute, Hour, Day, Week, Month or Year, not "+given)
	}
	q := &quota{numbers: numbers{requests: uint64(o.Limit.Requests), per: unit}, shadow: o.Shadow, at: at.in("limit")}
	if o.Limit.Metadata != nil {
		q.whyOff = []string{"Envoy may take another limit from metadata."}
	}
	if isLocal && q.requests > 0 {
		q.numbers = numbers{algorithm: "token_bucket", requests: q.requests, burst: q.requests, per: lengths[unit]}
	} else {
		r.noteCalendar(unit)
	}
	return q
}

// readSelector adds a selector's conditions and parts of keys to a descriptor.
func (r *reader) readSelector(d *descriptor, o *gatewaySelector, at place) {
	for i, h := range o.Headers {
		at := at.item("headers", i)
		if p, ok := r.readHeaderPart(h.Name, at); ok {
			r.readMatch(d, p, h, at)
		}
	}
	r.readMethods(d, o.Methods, at)
	for i, q := range o.Query {
		at := at.item("queryParams", i)
		if q.Name == "" {
			r.fail(at, "a query parameter needs a name")
		}
		r.readMatch(d, part{kind: kindQuery, name: q.Name}, q, at)
	}
	if o.Path != nil {
		if o.Path.Type == "" {
			o.Path.Type = "PathPrefix"
		}
		if o.Path.Type != "PathPrefix" || o.Path.Value != "/" {
			r.readMatch(d, fullPath, o.Path, at.in("path"))
		}
	}
	if o.SourceCIDR != nil {
		r.readMatch(d, clientIP, o.SourceCIDR, at.in("sourceCIDR"))
	}
}

// readMethods adds the condition that a request has any of some methods.
func (r *reader) readMethods(d *descriptor, list []*gatewayMatch, at place) {
	var methods []string
	for i, m := range list {
		switch {
		case m.Invert && len(list) > 1:
			d.cannotMatch("they have one of several methods, and not another")
		case m.Invert:
			d.restrict(method, pattern{exactly, m.Value}, true)
		case isOf(m.Value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
			methods = append(methods, m.Value)
		default:
			r.fail(at.item("methods", i), "must be a method such as GET, not "+strconv.Quote(m.Value))
		}
	}
	if methods != nil {
		d.selection = d.and(selection{match: method.matching(exact(methods)...)})
	}
}

// readMatch adds one condition: on a part of the request, or that each value of
// the part counts for itself.
func (r *reader) readMatch(d *descriptor, p part, o *gatewayMatch, at place) {
	v := pattern{exactly, o.Value}
	switch o.Type {
	case "Distinct":
		d.entries = append(d.entries, entry{key: string(p.kind) + p.name, part: &p})
		if v.text == "" {
			return
		}
	case "PathPrefix":
		v = pattern{orBelow, strings.TrimSuffix(o.Value, "/")}
	case "RegularExpression":
		var ok bool
		v, ok = r.regex(o.Value, at)
		if !ok {
			return
		}
	case "Exact", "":
	default:
		r.fail(at, "type must be Exact, Distinct, PathPrefix or RegularExpression, not "+strconv.Quote(o.Type))
		return
	}
	if p.kind == kindClientIP {
		network, err := netip.ParsePrefix(o.Value)
		if err != nil {
			r.fail(at, "value must be a network such as 10.0.0.0/8, not "+strconv.Quote(o.Value))
			return
		}
		v.text = network.Masked().String()
	}
	d.restrict(p, v, o.Invert)
}
