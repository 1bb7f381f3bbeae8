package envoy

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

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// gatewayLimit is the rateLimit of a BackendTrafficPolicy of Envoy Gateway. An example, of a policy named shop:
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

// TrafficPolicy is the kind of the resources of Envoy Gateway that have limits.
const TrafficPolicy = "BackendTrafficPolicy"

// HasTrafficPolicy reports whether a file has a BackendTrafficPolicy.
func HasTrafficPolicy(files []*source.Document) bool {
	hasOne := func(in *source.Document) bool { return len(source.OfKind(in.Root, TrafficPolicy)) > 0 }
	return slices.ContainsFunc(files, hasOne)
}

// ReadTrafficPolicies makes rules of BackendTrafficPolicies. Other limits beside them are a
// problem: a policy is made of one kind.
func ReadTrafficPolicies(d *draft.Draft, files []*source.Document, o Options) error {
	r := newReader(d, files, o)
	if o.Routes != nil || o.Listener != "" {
		return errors.New("a " + TrafficPolicy + " names its requests itself: leave out --routes and --listener")
	}
	for _, in := range files {
		for _, n := range source.Resources(in.Root) {
			if source.TextOf(n, "kind") == TrafficPolicy {
				d.Rules = append(d.Rules, r.trafficPolicy(n, in.Top())...)
			} else {
				r.Fail(in.Top(), "holds a "+TrafficPolicy+" and limits of another kind: import each kind by itself")
			}
		}
	}
	return r.keys.unused()
}

// trafficPolicy makes rules of a BackendTrafficPolicy. The place is that of its file.
func (r *reader) trafficPolicy(n *policy.Node, file source.Place) (list []*draft.Rule) {
	name := source.TextOf(n, "metadata", "name")
	spec := source.FieldOf(n, "spec")
	targets := append(source.ItemsOf(spec, "target_refs"), source.ItemsOf(spec, "target_selectors")...)
	if one := source.FieldOf(spec, "target_ref"); one != nil {
		targets = append(targets, one)
	}
	for _, target := range targets {
		which := strings.TrimSpace("the " + source.TextOf(target, "kind") + " " + source.TextOf(target, "name"))
		if source.FieldOf(target, "name") == nil {
			which = "what its targetSelectors select"
		}
		r.Note(file, "the BackendTrafficPolicy "+name+" is only for "+which+": apply the policy to the same, or give "+
			"its rules a match")
	}
	limit := source.FieldOf(spec, "rate_limit")
	if limit == nil {
		return nil
	}
	at := file.In("spec.rateLimit")
	o := &gatewayLimit{}
	if err := strictly(limit, o); err != nil {
		r.failToDecodeGateway(at, err)
		return nil
	}
	if o.Global != nil && !r.Cluster {
		r.NoteImport(eachEnvoy)
	}
	name = draft.Clip(name, 100)
	if o.Global != nil {
		global := gatewayList{reader: r, rules: o.Global.Rules, name: name, at: at.In("global")}
		list = global.makeRules()
	}
	if o.Local != nil {
		local := gatewayList{reader: r, rules: o.Local.Rules, name: name, at: at.In("local"), isLocal: true}
		list = append(list, local.makeRules()...)
	}
	return list
}

// strictly decodes an object. An unknown field is an error.
func strictly(n *policy.Node, to any) error {
	d := json.NewDecoder(bytes.NewReader(policy.AppendJSON(nil, n)))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// failToDecodeGateway makes a problem of an error of strictly.
func (r *reader) failToDecodeGateway(at source.Place, err error) {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		given := cmp.Or(jsonWords[wrong.Value], strings.TrimPrefix(wrong.Value, "number ")) // such as "number -1"
		r.Fail(at.In(wrong.Field), "must be "+wordOf(wrong.Type)+", not "+given)
		return
	}
	r.Fail(at, strings.TrimPrefix(err.Error(), "json: "))
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

// gatewayList is one list of rules of a BackendTrafficPolicy.
type gatewayList struct {
	reader  *reader
	rules   []*gatewayRule
	name    string // of the policy
	isLocal bool   // each Envoy counts for itself, by token buckets
	at      source.Place
}

// makeRules makes a rule of each. A local rule without selectors is for the requests of no other rule.
func (l *gatewayList) makeRules() (list []*draft.Rule) {
	isDefault := func(o *gatewayRule) bool { return l.isLocal && len(o.Selectors) == 0 }
	var defaults []*draft.Rule
	for i, o := range l.rules {
		if !isDefault(o) {
			d := l.reader.readGatewayRule(o, l.at.Item("rules", i))
			list = append(list, l.makeRule(i, &d)...)
		}
	}
	for i, o := range l.rules {
		if !isDefault(o) {
			continue
		}
		d := l.reader.readGatewayRule(o, l.at.Item("rules", i))
		if d.ExemptLimited(list) {
			defaults = append(defaults, l.makeRule(i, &d)...)
		}
	}
	return append(list, defaults...)
}

// makeRule makes the rule at an index, for the requests of a descriptor. Its conditions are in the descriptor's
// selection, so one leaf has all its requests: each part of the key, with any value.
func (l *gatewayList) makeRule(i int, d *descriptor.Descriptor) []*draft.Rule {
	name := l.name + "-" + strconv.Itoa(i+1)
	leaf := descriptor.NewLeaf(name, l.readQuota(l.rules[i], d.At), d.At, d.Entries)
	return d.Rules([]*descriptor.Leaf{leaf}, l.reader.Findings)
}

// readGatewayRule reads for which requests a rule is: the descriptor is sent for those that its selectors select.
func (r *reader) readGatewayRule(o *gatewayRule, at source.Place) descriptor.Descriptor {
	d := descriptor.Descriptor{At: at}
	for i, s := range o.Selectors {
		r.readSelector(&d, s, at.Item("clientSelectors", i))
	}
	if o.Cost != nil {
		readCost(&d, o.Cost)
	}
	if o.Shared {
		r.Note(at.In("shared"), "ignored: the rule has one counter wherever its policy is applied")
	}
	if o.Fields != nil {
		r.Note(at.In("xRateLimitHeaders"), "ignored: a policy has headers for all its rules")
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
func (l *gatewayList) readQuota(o *gatewayRule, at source.Place) *draft.Quota {
	if o.Limit == nil {
		l.reader.Fail(at, "a rule needs a limit")
		return nil
	}
	unit := strings.ToLower(o.Limit.Unit)
	if lengths[unit] == "" {
		given := strconv.Quote(o.Limit.Unit)
		l.reader.Fail(at.In("limit.unit"), "must be Second, Minute, Hour, Day, Week, Month or Year, not "+given)
	}
	q := &draft.Quota{Numbers: draft.Windowed(uint64(o.Limit.Requests), unit), Shadow: o.Shadow, At: at.In("limit")}
	if o.Limit.Metadata != nil {
		q.Cannot("Envoy may take another limit from metadata.")
	}
	if l.isLocal && q.Requests > 0 {
		q.Numbers = draft.TokenBucket(q.Requests, lengths[unit], q.Requests)
	} else {
		l.reader.noteCalendar(unit)
	}
	return q
}

// readSelector adds a selector's conditions and parts of keys to a descriptor.
func (r *reader) readSelector(d *descriptor.Descriptor, o *gatewaySelector, at source.Place) {
	for i, h := range o.Headers {
		at := at.Item("headers", i)
		if p, ok := r.readHeaderPart(h.Name, at); ok {
			r.readMatch(d, p, h, at)
		}
	}
	r.readMethods(d, o.Methods, at)
	for i, q := range o.Query {
		at := at.Item("queryParams", i)
		if q.Name == "" {
			r.Fail(at, "a query parameter needs a name")
		}
		r.readMatch(d, request.Part{Kind: request.KindQuery, Name: q.Name}, q, at)
	}
	if o.Path != nil {
		if o.Path.Type == "" {
			o.Path.Type = "PathPrefix"
		}
		if o.Path.Type != "PathPrefix" || o.Path.Value != "/" {
			r.readMatch(d, request.FullPath, o.Path, at.In("path"))
		}
	}
	if o.SourceCIDR != nil {
		r.readMatch(d, request.ClientIP, o.SourceCIDR, at.In("sourceCIDR"))
	}
}

// readMethods adds the condition that a request has any of some methods.
func (r *reader) readMethods(d *descriptor.Descriptor, list []*gatewayMatch, at source.Place) {
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
			r.Fail(at.Item("methods", i), "must be a method such as GET, not "+strconv.Quote(m.Value))
		}
	}
	if methods != nil {
		d.Selection = d.And(request.Selection{Match: request.Method.Matching(request.ExactAll(methods)...)})
	}
}

// readMatch adds one condition: on a part of the request, or that each value of
// the part counts for itself.
func (r *reader) readMatch(d *descriptor.Descriptor, p request.Part, o *gatewayMatch, at source.Place) {
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
		v, ok = r.regex(o.Value, at)
		if !ok {
			return
		}
	case "Exact", "":
	default:
		r.Fail(at, "type must be Exact, Distinct, PathPrefix or RegularExpression, not "+strconv.Quote(o.Type))
		return
	}
	if p.Kind == request.KindClientIP {
		network, err := netip.ParsePrefix(o.Value)
		if err != nil {
			r.Fail(at, "value must be a network such as 10.0.0.0/8, not "+strconv.Quote(o.Value))
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
