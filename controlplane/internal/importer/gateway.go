package importer

import (
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// gatewayLimit is the rateLimit of a BackendTrafficPolicy of Envoy Gateway.
type gatewayLimit struct {
	Type   string        `yaml:"type"`
	Global *gatewayRules `yaml:"global"`
	Local  *gatewayRules `yaml:"local"`
}

type gatewayRules struct {
	Rules []*gatewayRule `yaml:"rules"`
}

type gatewayRule struct {
	Selectors []*gatewaySelector `yaml:"clientSelectors"`
	Limit     *gatewayQuota      `yaml:"limit"`
	Cost      *gatewayCost       `yaml:"cost"`
	Shared    bool               `yaml:"shared" note:"the rule has one counter wherever its policy is applied"`
	Shadow    bool               `yaml:"shadowMode"`
	Fields    any                `yaml:"xRateLimitHeaders" note:"a policy has headers for all its rules"`
}

type gatewayCost struct {
	Request  *gatewayHits `yaml:"request"`
	Response *gatewayHits `yaml:"response"`
}

type gatewayHits struct {
	From     string `yaml:"from"`
	Number   uint32 `yaml:"number"`
	Metadata any    `yaml:"metadata" note:""`
}

type gatewayQuota struct {
	Requests uint32 `yaml:"requests"`
	Unit     string `yaml:"unit"`
	Metadata *struct {
		Namespace string `yaml:"namespace"`
		Key       string `yaml:"key"`
	} `yaml:"fromMetadata"`
}

// gatewaySelector says of which requests a rule is; all its conditions hold.
type gatewaySelector struct {
	Headers    []*gatewayMatch `yaml:"headers"`
	Methods    []*gatewayMatch `yaml:"methods"`
	Path       *gatewayMatch   `yaml:"path"`
	SourceCIDR *gatewayMatch   `yaml:"sourceCIDR"`
	Query      []*gatewayMatch `yaml:"queryParams"`
}

type gatewayMatch struct {
	Type   string `yaml:"type"`
	Name   string `yaml:"name"`
	Value  string `yaml:"value"`
	Invert bool   `yaml:"invert"`
}

const trafficPolicy = "BackendTrafficPolicy"

// trafficPolicies makes rules of BackendTrafficPolicies. Other limits beside them are a
// problem: a policy is made of one kind.
func (j *job) trafficPolicies() error {
	j.from = trafficPolicy
	if j.Routes != nil || j.Listener != "" {
		return errors.New("a " + trafficPolicy + " names its requests itself: leave out --routes and --listener")
	}
	for _, in := range j.files {
		for _, n := range resources(in.root) {
			if textOf(n, "kind") == trafficPolicy {
				j.rules = append(j.rules, in.gateway(n)...)
			} else {
				in.fail(n, "", "is no "+trafficPolicy+", and others are: import each kind by itself")
			}
		}
	}
	return nil
}

// gateway makes rules of a BackendTrafficPolicy.
func (in *source) gateway(n *policy.Node) (list []rule) {
	name, spec := textOf(n, "metadata", "name"), fieldOf(n, "spec")
	targets := append(itemsOf(spec, "target_refs"), fieldOf(spec, "target_ref"))
	for _, target := range append(targets, itemsOf(spec, "target_selectors")...) {
		if target == nil {
			continue
		}
		which := strings.TrimSpace("the " + textOf(target, "kind") + " " + textOf(target, "name"))
		if fieldOf(target, "name") == nil {
			which = "what its targetSelectors select"
		}
		in.add(in.placeOf(target), "the BackendTrafficPolicy is for "+which+" alone: apply the policy to the same, or give its rules a match")
	}
	o := &gatewayLimit{}
	if limit := fieldOf(spec, "rate_limit"); limit != nil {
		in.decode(limit, "", o)
	}
	for _, of := range []*gatewayRules{o.Global, o.Local} {
		if of == nil {
			continue
		}
		list = append(list, in.gatewayRules(of, clip(name, 100), of == o.Local)...)
		if of == o.Global {
			in.addUnlessCluster(place{}, eachEnvoy)
		}
	}
	return list
}

// gatewayRules makes a rule of each. A local rule without selectors is for the
// requests of no other rule.
func (in *source) gatewayRules(o *gatewayRules, name string, local bool) []rule {
	var list []rule
	for _, open := range []bool{false, true} {
		limited := list
		for i, r := range o.Rules {
			d := descriptor{place: in.at(r, "")}
			if open != (local && len(r.Selectors) == 0) || open && !d.others(limited) {
				continue
			}
			for _, s := range r.Selectors {
				in.readSelector(&d, s)
			}
			if r.Cost != nil {
				d.readCost(r.Cost)
			}
			c := nothing(d.entries)
			c.name, c.place, c.quota = name+"-"+strconv.Itoa(i+1), d.place, in.gatewayQuota(r, local)
			list = append(list, d.rules([]leaf{c}, in.reader)...)
		}
	}
	return list
}

func (d *descriptor) readCost(o *gatewayCost) {
	hits := o.Request
	switch {
	case o.Response != nil:
		d.cannot("It counts what its responses say, and no rule does.")
	case hits != nil && (hits.From != "Number" || hits.Number == 0):
		d.cannot("Its cost is no number from 1.")
	case hits != nil && hits.Number > 1:
		d.cost = uint64(hits.Number)
	}
}

func (in *source) gatewayQuota(r *gatewayRule, local bool) *quota {
	if r.Limit == nil {
		in.failField(r, "", "a rule needs a limit")
		return nil
	}
	unit := strings.ToLower(r.Limit.Unit)
	if units[unit] == "" {
		in.failField(r.Limit, "unit", "must be Second, Minute, Hour, Day, Week, Month or Year, not "+strconv.Quote(r.Limit.Unit))
	}
	q := &quota{numbers: numbers{requests: uint64(r.Limit.Requests), per: unit}, shadow: r.Shadow, place: in.at(r.Limit, "")}
	if r.Limit.Metadata != nil {
		q.unknown = []string{"Envoy may take another limit from metadata, and a policy cannot say that."}
	}
	if local && q.requests > 0 {
		q.algorithm, q.burst, q.per = "token_bucket", q.requests, units[unit]
	} else {
		in.noteCalendar(unit)
	}
	return q
}

// readSelector adds a selector's conditions and parts of keys to a descriptor.
func (in *source) readSelector(d *descriptor, o *gatewaySelector) {
	for _, h := range o.Headers {
		if p, ok := in.headerPart(h, "name", h.Name); ok {
			in.select1(d, p, h)
		}
	}
	var methods []string
	for _, m := range o.Methods { // any of them
		switch {
		case m.Invert && len(o.Methods) > 1:
			d.cannot("It is for any of several methods or all but one.")
		case m.Invert:
			d.restrict(method, pattern{exactly, m.Value}, true)
		case isOf(m.Value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
			methods = append(methods, m.Value)
		default:
			in.failField(m, "value", "must be a method such as GET, not "+strconv.Quote(m.Value))
		}
	}
	if methods != nil {
		d.scope = d.and(scope{match: match{method.kind: methods}})
	}
	for _, q := range o.Query {
		if q.Name == "" {
			in.failField(q, "name", "a query parameter needs a name")
		}
		in.select1(d, part{kind: "query", name: q.Name}, q)
	}
	if o.Path != nil {
		if o.Path.Type == "" {
			o.Path.Type = "PathPrefix"
		}
		if o.Path.Type != "PathPrefix" || o.Path.Value != "/" {
			in.select1(d, fullPath, o.Path)
		}
	}
	if o.SourceCIDR != nil {
		in.select1(d, clientIP, o.SourceCIDR)
	}
}

// select1 adds one condition: on a part of the request, or that each value of
// the part counts for itself.
func (in *source) select1(d *descriptor, p part, o *gatewayMatch) {
	v := pattern{exactly, o.Value}
	switch o.Type {
	case "Distinct":
		d.entries = append(d.entries, entry{key: p.kind + p.name, part: &p})
		if v.text == "" {
			return
		}
	case "PathPrefix":
		v = pattern{expression, regexp.QuoteMeta(strings.TrimSuffix(o.Value, "/")) + below}
	case "RegularExpression":
		var ok bool
		if v, ok = in.regex(o, "value", o.Value); !ok {
			return
		}
	case "Exact", "":
	default:
		in.failField(o, "type", "must be Exact, Distinct, PathPrefix or RegularExpression, not "+strconv.Quote(o.Type))
		return
	}
	if p.kind == "client_ip" {
		network, err := netip.ParsePrefix(o.Value)
		if err != nil {
			in.failField(o, "value", "must be a network such as 10.0.0.0/8, not "+strconv.Quote(o.Value))
			return
		}
		v.text = network.Masked().String()
	}
	d.restrict(p, v, o.Invert)
}
