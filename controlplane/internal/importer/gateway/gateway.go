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
//	  decodeLimits      its rateLimit; an unknown field is a problem
//	  makeRules         a rule of each in the lists global and local
//	    termsOf
//	      readSelector  which requests it is for
//	      limitOf       its limit
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
	field := source.FieldOf(spec, "rate_limit")
	if field == nil {
		return
	}
	noteTargets(d.Findings, name, spec, r.At)
	at := r.At.In("spec.rateLimit")
	limits, ok := decodeLimits(d.Findings, field, at)
	if !ok {
		return
	}
	name = draft.Clip(name, 100)
	if limits.Global != nil {
		d.NoteEachEnvoy()
		global := ruleList{Findings: d.Findings, rules: limits.Global.Rules, name: name, at: at.In("global")}
		d.Add(global.makeRules()...)
	}
	if limits.Local != nil {
		local := ruleList{Findings: d.Findings, rules: limits.Local.Rules, name: name, at: at.In("local"), isLocal: true}
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
	Type   string `json:"type"` // empty = exact; of a path pathPrefix
	Name   string `json:"name"`
	Value  string `json:"value"`
	Invert bool   `json:"invert"`
}

// The types of matchers.
const (
	exact             = "Exact"
	pathPrefix        = "PathPrefix"
	regularExpression = "RegularExpression"
	distinct          = "Distinct" // each value counts for itself
)

// decodeLimits decodes the rateLimit of a BackendTrafficPolicy. It is not ok if there is a problem in it, such as a
// field that the types above lack.
func decodeLimits(to *draft.Findings, n *policy.Node, at source.Place) (limits *rateLimitSpec, ok bool) {
	d := json.NewDecoder(bytes.NewReader(policy.AppendJSON(nil, n)))
	d.DisallowUnknownFields()
	err := d.Decode(&limits)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		given := cmp.Or(jsonWords[wrong.Value], strings.TrimPrefix(wrong.Value, "number ")) // such as "number -1"
		to.Fail(at.In(wrong.Field), "must be "+wordOf(wrong.Type)+", not "+given)
	case err != nil:
		to.Fail(at, strings.TrimPrefix(err.Error(), "json: "))
	}
	return limits, err == nil
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
	rules   []limitRule
	name    string // of the policy
	isLocal bool   // each Envoy counts for itself, by token buckets
	at      source.Place
}

// makeRules makes a rule of each. A local rule without selectors is for the requests of no other rule.
func (list *ruleList) makeRules() (made []*draft.Rule) {
	var withoutSelectors []draft.Terms
	for i, rule := range list.rules {
		t := list.termsOf(rule, i)
		switch {
		case t.Limit == nil:
		case list.isLocal && len(rule.Selectors) == 0:
			withoutSelectors = append(withoutSelectors, t)
		default:
			made = append(made, draft.NewRule(t))
		}
	}
	var ofRest []*draft.Rule
	for _, t := range withoutSelectors {
		if t.ExemptLimited(made, true) {
			ofRest = append(ofRest, draft.NewRule(t))
		} else {
			list.NoteNoRequest(t.At, t.Name)
		}
	}
	return append(made, ofRest...)
}

// termsOf are the terms of the rule at an index: it is for the requests that all of its selectors select. They have no
// limit if there is a problem in that.
func (list *ruleList) termsOf(rule limitRule, index int) draft.Terms {
	at := list.at.Item("rules", index)
	t := draft.Terms{Name: list.name + "-" + strconv.Itoa(index+1), At: at}
	for i, s := range rule.Selectors {
		list.readSelector(&t, s, at.Item("clientSelectors", i))
	}
	if rule.Cost != nil {
		readCost(&t, rule.Cost)
	}
	if rule.Shared {
		list.Note(at.In("shared"), "ignored: the rule has one counter wherever its policy is applied")
	}
	if rule.XRateLimitHeaders != nil {
		list.Note(at.In("xRateLimitHeaders"), "ignored: a policy has headers for all its rules")
	}
	t.Limit = list.limitOf(rule, at)
	return t
}

func readCost(t *draft.Terms, c *cost) {
	counted := c.Request
	switch {
	case c.Response != nil:
		t.Requests.TurnOff("It counts what a response says.")
	case counted != nil && (counted.From != "Number" || counted.Number == 0):
		t.Requests.TurnOff("Its cost is not a number of at least 1.")
	case counted != nil && counted.Number > 1:
		t.Cost = uint64(counted.Number)
	}
}

// readSelector adds a selector's conditions and parts of the key.
func (list *ruleList) readSelector(t *draft.Terms, s selector, at source.Place) {
	for i, header := range s.Headers {
		at := at.Item("headers", i)
		value, err := request.HeaderNamed(header.Name)
		if err != nil {
			list.Fail(at, err.Error())
			continue
		}
		list.readCondition(t, value, header, at)
	}
	list.readMethods(t, s.Methods, at)
	for i, query := range s.Query {
		at := at.Item("queryParams", i)
		if query.Name == "" {
			list.Fail(at, "a query parameter needs a name")
		}
		list.readCondition(t, request.Part{Kind: request.KindQuery, Name: query.Name}.Value(), query, at)
	}
	if s.Path != nil {
		path := *s.Path
		path.Type = cmp.Or(path.Type, pathPrefix)
		isEveryPath := path.Type == pathPrefix && path.Value == "/" && !path.Invert // so it is no condition
		if !isEveryPath {
			list.readCondition(t, request.FullPath.Value(), path, at.In("path"))
		}
	}
	if s.SourceCIDR != nil {
		list.readCondition(t, request.ClientIP.Value(), *s.SourceCIDR, at.In("sourceCIDR"))
	}
}

// readMethods adds the condition that a request has any of some methods.
func (list *ruleList) readMethods(t *draft.Terms, methods []matcher, at source.Place) {
	var texts []request.Pattern
	for i, m := range methods {
		if !m.Invert && !request.HasOnly(m.Value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			list.Fail(at.Item("methods", i), "must be a method such as GET, not "+strconv.Quote(m.Value))
		}
		texts = append(texts, request.Exact(m.Value))
	}
	isInverted := func(m matcher) bool { return m.Invert }
	switch {
	case len(methods) == 0:
	case !slices.ContainsFunc(methods, isInverted):
		t.Requests.Require(request.Method.Value(), texts...)
	case len(methods) == 1:
		t.Requests.ExemptFitting(request.Method.Value(), texts...)
	default:
		t.Requests.TurnOff(request.NoMatch("they have one of several methods, and not another"))
	}
}

// readCondition adds one condition: on a value of the request, or that each of these values counts for itself. A
// network that is distinct has both: each of its addresses counts for itself.
func (list *ruleList) readCondition(t *draft.Terms, value request.Value, m matcher, at source.Place) {
	if m.Type == distinct {
		t.Key = append(t.Key, value.Part)
		if m.Value == "" {
			return
		}
	}
	pattern, ok := list.readPattern(value.Part.Kind, m, at)
	switch {
	case !ok:
	case m.Invert:
		t.Requests.ExemptFitting(value, pattern)
	default:
		t.Requests.Require(value, pattern)
	}
}

// readPattern reads the pattern of a condition. It is not ok, and a problem, if there is none.
func (list *ruleList) readPattern(
	kind request.PartKind, m matcher, at source.Place,
) (pattern request.Pattern, ok bool) {
	switch m.Type {
	case "", exact, distinct:
		if kind != request.KindClientIP {
			return request.Exact(m.Value), true
		}
		_, err := netip.ParsePrefix(m.Value)
		if err != nil {
			list.Fail(at, "value must be a network such as 10.0.0.0/8, not "+strconv.Quote(m.Value))
		}
		return request.Exact(m.Value), err == nil
	case pathPrefix:
		return request.OrBelow(strings.TrimSuffix(m.Value, "/"), false), true
	case regularExpression:
		pattern, err := request.ParseExpression(m.Value)
		if err != nil {
			list.Fail(at, err.Error())
		}
		return pattern, err == nil
	}
	list.Fail(at, "type must be Exact, Distinct, PathPrefix or RegularExpression, not "+strconv.Quote(m.Type))
	return request.Pattern{}, false
}

// lengths are the units of time with the lengths that token buckets have for them.
var lengths = map[string]string{
	"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d", "year": "365d",
}

// limitOf reads the limit of a rule; nil, and a problem, if it has none. The place is that of the rule.
func (list *ruleList) limitOf(rule limitRule, at source.Place) *draft.Limit {
	if rule.Limit == nil {
		list.Fail(at, "a rule needs a limit")
		return nil
	}
	requests := uint64(rule.Limit.Requests)
	unit := strings.ToLower(rule.Limit.Unit)
	length := lengths[unit]
	if length == "" {
		given := strconv.Quote(rule.Limit.Unit)
		list.Fail(at.In("limit.unit"), "must be Second, Minute, Hour, Day, Week, Month or Year, not "+given)
		return nil
	}
	limit := &draft.Limit{Numbers: draft.Windowed(requests, unit), Shadow: rule.Shadow, At: at.In("limit")}
	if rule.Limit.Metadata != nil {
		limit.TurnOff("Envoy may take another limit from metadata.")
	}
	switch {
	case !list.isLocal:
		list.NoteCalendar(unit)
	case requests > 0:
		limit.Numbers = draft.TokenBucket(requests, length, requests)
	}
	return limit
}
