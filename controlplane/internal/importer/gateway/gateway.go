// Package gateway reads the limits of Envoy Gateway: its BackendTrafficPolicies. Each of their rules says itself which
// requests it is for, so it becomes one rule. An example, of a BackendTrafficPolicy named shop:
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
//
// The calls:
//
//	Read: addPolicy
//	  decodeLimit       its rateLimit; an unknown field is a problem
//	  makeRules         a rule of each in the lists global and local
//	    termsOf         which requests it is for: readSelector
//	    limitOf         its limit
//
// golden_test.go in the folder above imports testdata/imports/traffic-policies.txtar and others.
package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// HasPolicy reports whether a file has a BackendTrafficPolicy.
func HasPolicy(files []*source.Document) bool {
	hasOne := func(in *source.Document) bool { return len(in.OfKind(source.TrafficPolicy)) > 0 }
	return slices.ContainsFunc(files, hasOne)
}

// Read makes rules of BackendTrafficPolicies. Other resources of Kubernetes beside them are left out. Limits of another
// kind are a problem: a policy is made of one kind.
func Read(d *draft.Draft, files []*source.Document) {
	for _, in := range files {
		for _, r := range in.Resources() {
			switch kind := source.TextOf(r.Node, "kind"); kind {
			case source.TrafficPolicy:
				addPolicy(d, r)
			case "", "EnvoyFilter":
				d.Fail(r.At, "is not a "+source.TrafficPolicy+", and another document is: import each kind by itself")
			default:
				d.Note(r.At, "ignored: this is of the kind "+draft.Clip(kind, 100)+", and the import reads "+source.TrafficPolicy)
			}
		}
	}
}

// addPolicy makes the rules of a BackendTrafficPolicy.
func addPolicy(d *draft.Draft, r source.Resource) {
	name := source.TextOf(r.Node, "metadata", "name")
	spec := source.FieldOf(r.Node, "spec")
	limit := source.FieldOf(spec, "rate_limit")
	if limit == nil {
		return
	}
	noteTargets(d.Findings, name, spec, r.At)
	at := r.At.In("spec.rateLimit")
	o, ok := decodeLimit(d.Findings, limit, at)
	if !ok {
		return
	}
	name = draft.Clip(name, 100)
	if o.Global != nil {
		d.NoteEachEnvoy()
		global := ruleList{Findings: d.Findings, listed: o.Global.Rules, name: name, at: at.In("global")}
		d.Add(global.makeRules()...)
	}
	if o.Local != nil {
		local := ruleList{Findings: d.Findings, listed: o.Local.Rules, name: name, at: at.In("local"), isLocal: true}
		d.Add(local.makeRules()...)
	}
}

// noteTargets notes what a BackendTrafficPolicy is for. Its rules are for all requests.
func noteTargets(to *draft.Findings, name string, spec *policy.Node, at source.Place) {
	targets := append(source.ItemsOf(spec, "target_refs"), source.ItemsOf(spec, "target_selectors")...)
	if one := source.FieldOf(spec, "target_ref"); one != nil {
		targets = append(targets, one)
	}
	for _, target := range targets {
		which := strings.TrimSpace("the " + source.TextOf(target, "kind") + " " + source.TextOf(target, "name"))
		if source.FieldOf(target, "name") == nil {
			which = "what its targetSelectors select"
		}
		to.Note(at, "the BackendTrafficPolicy "+name+" is only for "+which+": apply the policy to the same, or give "+
			"its rules a match")
	}
}

// rateLimitSpec is the rateLimit of a BackendTrafficPolicy of Envoy Gateway. What may be absent is a pointer. An item
// of a list is not, so one that is null is read as an empty one.
type rateLimitSpec struct {
	Type   string      `json:"type"`
	Global *limitRules `json:"global"`
	Local  *limitRules `json:"local"`
}

type limitRules struct {
	Rules []limitRule `json:"rules"`
}

type limitRule struct {
	Selectors         []selector `json:"clientSelectors"`
	Limit             *amount    `json:"limit"`
	Cost              *cost      `json:"cost"`
	Shared            bool       `json:"shared"`
	Shadow            bool       `json:"shadowMode"`
	XRateLimitHeaders any        `json:"xRateLimitHeaders"`
}

type cost struct {
	Request  *hits `json:"request"`
	Response *hits `json:"response"`
}

type hits struct {
	From     string `json:"from"`
	Number   uint32 `json:"number"`
	Metadata any    `json:"metadata"`
}

type amount struct {
	Requests uint32 `json:"requests"`
	Unit     string `json:"unit"`
	Metadata any    `json:"fromMetadata"`
}

// selector says which requests a rule is for: those that meet all of its conditions.
type selector struct {
	Headers    []matcher `json:"headers"`
	Methods    []matcher `json:"methods"`
	Path       *matcher  `json:"path"`
	SourceCIDR *matcher  `json:"sourceCIDR"`
	Query      []matcher `json:"queryParams"`
}

// matcher is one condition of a selector. In the API of Envoy Gateway a method has no type, and only a path may have
// PathPrefix. The import does not check this: Kubernetes does, before Envoy Gateway has the file.
type matcher struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Value  string `json:"value"`
	Invert bool   `json:"invert"`
}

// decodeLimit decodes the rateLimit of a BackendTrafficPolicy. It is not ok if there is a problem in it, such as a
// field that the types above lack.
func decodeLimit(to *draft.Findings, n *policy.Node, at source.Place) (o *rateLimitSpec, ok bool) {
	d := json.NewDecoder(bytes.NewReader(policy.AppendJSON(nil, n)))
	d.DisallowUnknownFields()
	err := d.Decode(&o)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		given := cmp.Or(jsonWords[wrong.Value], strings.TrimPrefix(wrong.Value, "number ")) // such as "number -1"
		to.Fail(at.In(wrong.Field), "must be "+wordOf(wrong.Type)+", not "+given)
	case err != nil:
		to.Fail(at, strings.TrimPrefix(err.Error(), "json: "))
	}
	return o, err == nil
}

// jsonWords are what encoding/json calls the kinds of values.
var jsonWords = map[string]string{
	"string": "a text", "number": "a number", "bool": "true or false", "array": "a list", "object": "an object",
}

// wordOf says what the field of a type takes.
func wordOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Uint32:
		return "a whole number from 0 to 4294967295"
	default:
		return "an object"
	}
}

// ruleList is one list of rules of a BackendTrafficPolicy.
type ruleList struct {
	*draft.Findings
	listed  []limitRule
	name    string // of the policy
	isLocal bool   // each Envoy counts for itself, by token buckets
	at      source.Place
}

// makeRules makes a rule of each. A local rule without selectors is for the requests of no other rule.
func (list *ruleList) makeRules() (rules []*draft.Rule) {
	isDefault := func(o limitRule) bool { return list.isLocal && len(o.Selectors) == 0 }
	for i, o := range list.listed {
		if !isDefault(o) {
			rules = append(rules, list.makeRule(o, list.termsOf(i))...)
		}
	}
	var defaults []*draft.Rule
	for i, o := range list.listed {
		if !isDefault(o) {
			continue
		}
		t := list.termsOf(i)
		if t.ExemptLimited(rules, true) {
			defaults = append(defaults, list.makeRule(o, t)...)
		} else {
			list.NoteNoRequest(t.At, t.Name)
		}
	}
	return append(rules, defaults...)
}

// makeRule makes the rule of terms that lack its limit; none if it has none.
func (list *ruleList) makeRule(o limitRule, t draft.Terms) []*draft.Rule {
	t.Limit = list.limitOf(o, t.At)
	if t.Limit == nil {
		return nil
	}
	return []*draft.Rule{draft.NewRule(t)}
}

// termsOf are the terms of the rule at an index, without its limit: it is for the requests that all of its selectors
// select.
func (list *ruleList) termsOf(i int) draft.Terms {
	o := list.listed[i]
	at := list.at.Item("rules", i)
	t := draft.Terms{Name: list.name + "-" + strconv.Itoa(i+1), At: at}
	for i, s := range o.Selectors {
		list.readSelector(&t, s, at.Item("clientSelectors", i))
	}
	if o.Cost != nil {
		readCost(&t, o.Cost)
	}
	if o.Shared {
		list.Note(at.In("shared"), "ignored: the rule has one counter wherever its policy is applied")
	}
	if o.XRateLimitHeaders != nil {
		list.Note(at.In("xRateLimitHeaders"), "ignored: a policy has headers for all its rules")
	}
	return t
}

func readCost(t *draft.Terms, o *cost) {
	h := o.Request
	switch {
	case o.Response != nil:
		t.Requests.TurnOff("It counts what a response says.")
	case h != nil && (h.From != "Number" || h.Number == 0):
		t.Requests.TurnOff("Its cost is not a number of at least 1.")
	case h != nil && h.Number > 1:
		t.Cost = uint64(h.Number)
	}
}

// readSelector adds a selector's conditions and parts of the key.
func (list *ruleList) readSelector(t *draft.Terms, o selector, at source.Place) {
	for i, h := range o.Headers {
		at := at.Item("headers", i)
		value, err := request.HeaderNamed(h.Name)
		if err != nil {
			list.Fail(at, err.Error())
			continue
		}
		list.readCondition(t, value, h, at)
	}
	list.readMethods(t, o.Methods, at)
	for i, q := range o.Query {
		at := at.Item("queryParams", i)
		if q.Name == "" {
			list.Fail(at, "a query parameter needs a name")
		}
		list.readCondition(t, request.Part{Kind: request.KindQuery, Name: q.Name}.Value(), q, at)
	}
	if o.Path != nil {
		path := *o.Path
		path.Type = cmp.Or(path.Type, "PathPrefix")
		isEveryPath := path.Type == "PathPrefix" && path.Value == "/" && !path.Invert // so it is no condition
		if !isEveryPath {
			list.readCondition(t, request.FullPath.Value(), path, at.In("path"))
		}
	}
	if o.SourceCIDR != nil {
		list.readCondition(t, request.ClientIP.Value(), *o.SourceCIDR, at.In("sourceCIDR"))
	}
}

// readMethods adds the condition that a request has any of some methods.
func (list *ruleList) readMethods(t *draft.Terms, matchers []matcher, at source.Place) {
	var methods []string
	for i, m := range matchers {
		switch {
		case m.Invert && len(matchers) > 1:
			t.Requests.TurnOff(request.NoMatch("they have one of several methods, and not another"))
		case m.Invert:
			t.Requests.ExemptFitting(request.Method.Value(), request.Exact(m.Value))
		case request.HasOnly(m.Value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
			methods = append(methods, m.Value)
		default:
			list.Fail(at.Item("methods", i), "must be a method such as GET, not "+strconv.Quote(m.Value))
		}
	}
	if methods != nil {
		t.Requests.Require(request.Method.Value(), request.ExactAll(methods)...)
	}
}

// readCondition adds one condition: on a value of the request, or that each of these values counts for itself. A
// network that is Distinct has both: each of its addresses counts for itself.
func (list *ruleList) readCondition(
	t *draft.Terms, value request.Value, o matcher, at source.Place,
) {
	if o.Type == "Distinct" {
		t.Key = append(t.Key, value.Part)
		if o.Value == "" {
			return
		}
	}
	pattern, ok := list.readPattern(value.Part.Kind, o, at)
	switch {
	case !ok:
	case o.Invert:
		t.Requests.ExemptFitting(value, pattern)
	default:
		t.Requests.Require(value, pattern)
	}
}

// readPattern reads the pattern of a condition. It is not ok, and a problem, if there is none.
func (list *ruleList) readPattern(
	kind request.PartKind, o matcher, at source.Place,
) (pattern request.Pattern, ok bool) {
	isText := o.Type == "Exact" || o.Type == "" || o.Type == "Distinct"
	switch {
	case isText && kind == request.KindClientIP:
		_, err := netip.ParsePrefix(o.Value)
		if err != nil {
			list.Fail(at, "value must be a network such as 10.0.0.0/8, not "+strconv.Quote(o.Value))
		}
		return request.Exact(o.Value), err == nil
	case isText:
		return request.Exact(o.Value), true
	case o.Type == "PathPrefix":
		return request.OrBelow(strings.TrimSuffix(o.Value, "/"), false), true
	case o.Type == "RegularExpression":
		pattern, err := request.ParseExpression(o.Value)
		if err != nil {
			list.Fail(at, err.Error())
		}
		return pattern, err == nil
	}
	list.Fail(at, "type must be Exact, Distinct, PathPrefix or RegularExpression, not "+strconv.Quote(o.Type))
	return request.Pattern{}, false
}

// lengths are the units of time with the lengths that token buckets have for them.
var lengths = map[string]string{
	"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d", "year": "365d",
}

// limitOf reads the limit of a rule; nil, and a problem, if it has none. The place is that of the rule.
func (list *ruleList) limitOf(o limitRule, at source.Place) *draft.Limit {
	if o.Limit == nil {
		list.Fail(at, "a rule needs a limit")
		return nil
	}
	unit := strings.ToLower(o.Limit.Unit)
	if lengths[unit] == "" {
		given := strconv.Quote(o.Limit.Unit)
		list.Fail(at.In("limit.unit"), "must be Second, Minute, Hour, Day, Week, Month or Year, not "+given)
	}
	limit := &draft.Limit{Numbers: draft.Windowed(uint64(o.Limit.Requests), unit), Shadow: o.Shadow, At: at.In("limit")}
	if o.Limit.Metadata != nil {
		limit.TurnOff("Envoy may take another limit from metadata.")
	}
	switch {
	case !list.isLocal:
		list.NoteCalendar(unit)
	case limit.Requests > 0:
		limit.Numbers = draft.TokenBucket(limit.Requests, lengths[unit], limit.Requests)
	}
	return limit
}
