package nginx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/nginxkey"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// addRules makes the rules of a plan.
func (n *reader) addRules(p plan) {
	for _, d := range p.limits.list {
		n.addLimit(p, d)
	}
}

// addLimit makes the rules of one limit of a plan: one for each form that its key has.
func (n *reader) addLimit(p plan, d *nginxconf.Directive) {
	z := n.zoneOf(p.kind, d)
	if z == nil {
		return
	}
	limit := &draft.Limit{Numbers: z.Numbers, Shadow: p.limits.dryRun, At: nginxkey.PlaceOf(d)}
	if p.limits.dryRun && len(p.limits.list) > 1 {
		limit.Comment("nginx counts a request by none of these limits if one of them would deny it. In a " +
			"policy each rule in shadow mode counts by itself.")
	}
	if p.kind == limitReq {
		n.readLimitReq(limit, d)
	} else {
		n.readLimitConn(limit, d)
	}
	if !slices.Contains(z.used, limit.Numbers) {
		z.used = append(z.used, limit.Numbers)
	}
	for _, f := range n.variables.Counted(z.key) {
		n.addRule(p, z, limit, f)
	}
}

// readLimitReq reads burst, nodelay and delay.
func (n *reader) readLimitReq(limit *draft.Limit, d *nginxconf.Directive) {
	burst := uint64(0)
	delaysNone := false
	delayed := "all that are beyond the rate"
	for _, arg := range d.Args {
		name, value, _ := strings.Cut(arg, "=")
		number, err := strconv.ParseUint(value, 10, 32)
		isNumber := err == nil && number < 1<<32-1
		switch {
		case name == "zone":
		case name == "burst" && isNumber && number > 0:
			burst = number
		case name == "delay" && isNumber:
			delaysNone = false
			delayed = "all but " + value + " of those that are beyond the rate"
		case arg == "nodelay":
			delaysNone = true
		default:
			n.Fail(limit.At, "unknown parameter "+strconv.Quote(arg))
		}
	}
	limit.Burst = burst + 1
	if burst > 0 && !delaysNone {
		limit.Comment("nginx admits the requests of the burst, and delays " + delayed + ". A policy delays " +
			"none: the rule admits the same requests, and they pass at once.")
	}
}

// readLimitConn reads the number of requests that may run at once.
func (n *reader) readLimitConn(limit *draft.Limit, d *nginxconf.Directive) {
	number, err := strconv.ParseUint(d.Arg(1), 10, 16)
	if err != nil || number == 0 || len(d.Args) != 2 {
		n.Fail(limit.At, "needs a zone and a number of connections from 1 to 65535")
	}
	limit.Requests = number
}

// addRule makes the rule of a limit for one form of its key.
func (n *reader) addRule(p plan, z *zone, limit *draft.Limit, f nginxkey.Form) {
	if p.requests.Match.IsApart(f.Match) {
		return
	}
	requests := p.requests
	requests.NarrowTo(f.Selection)
	t := draft.Terms{
		Name: z.name, At: limit.At, Limit: limit, Requests: requests, Key: f.Parts, Capacity: z.capacity,
		Identity: fmt.Sprint(z.at, limit.Numbers, f.Text),
	}
	if p.limits.status != policyStatus {
		t.Response = &draft.Response{Status: uint32(p.limits.status)}
	}
	if len(f.Parts) > 1 && slices.ContainsFunc(f.Parts, request.Part.MayBeMissing) {
		t.MissingKey = string(policy.MissingShare)
		if !slices.ContainsFunc(f.Parts, func(p request.Part) bool { return !p.MayBeMissing() }) {
			t.Requests.Comment("nginx does not count a request without any part of the key. Here such requests count together.")
		}
	}
	n.draft.Rules = append(n.draft.Rules, draft.NewRule(n.Findings, t))
}

// policyStatus is the status of a denial where a policy says none. That of nginx is 503: see readHTTPScope.
const policyStatus = 429
