package nginx

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/nginxkey"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// zone is what a limit_req_zone or a limit_conn_zone says.
type zone struct {
	name     string
	key      string
	requests uint64 // of its rate; a limit_conn says its number itself
	per      string // of its rate
	capacity uint64 // 0 = the default
	at       source.Place
}

// zoneID names a zone: each module has its own.
type zoneID struct {
	of   module
	name string
}

// readZone reads limit_req_zone KEY zone=NAME:SIZE rate=RATE, or limit_conn_zone without a rate.
func (n *reader) readZone(d *nginxconf.Directive) {
	z := &zone{key: d.Arg(0), at: source.PlaceOf(d)}
	of := module(strings.TrimSuffix(d.Name, "_zone"))
	hasRate := false
	for _, arg := range d.Args[min(1, len(d.Args)):] {
		switch name, value, _ := strings.Cut(arg, "="); {
		case name == "zone":
			var size string
			z.name, size, _ = strings.Cut(value, ":")
			z.capacity = capacityOf(size)
		case name == "rate" && of == limitReq:
			hasRate = true
			n.readRate(z, value)
		case arg == "sync":
			n.Note(z.at, "sync: each Envoy counts for itself, and --scope cluster makes rules that count over all")
		default:
			n.Fail(z.at, "unknown parameter "+strconv.Quote(arg))
		}
	}
	switch id := (zoneID{of, z.name}); {
	case z.name == "" || z.key == "":
		n.Fail(z.at, "needs a key and zone=NAME:SIZE")
	case n.zones[id] != nil:
		n.Fail(z.at, "there is a zone "+z.name+" already")
	case of == limitReq && !hasRate:
		n.Fail(z.at, needsRate)
	default:
		n.zones[id] = z
	}
}

const needsRate = "needs a rate of at least 1r/m"

// readRate reads a rate such as 10r/s or 30r/m.
func (n *reader) readRate(z *zone, text string) {
	z.per = "1s"
	number, ok := strings.CutSuffix(text, "r/s")
	if !ok {
		z.per = "1m"
		number, ok = strings.CutSuffix(text, "r/m")
	}
	requests, err := strconv.ParseUint(number, 10, 32)
	switch {
	case !ok || err != nil:
		n.Fail(z.at, "rate must be a number of requests such as 10r/s or 30r/m, not "+strconv.Quote(text))
	case requests == 0:
		n.Fail(z.at, needsRate)
	}
	z.requests = requests
}

// keyBytes is the room that a key takes in a zone of nginx.
const keyBytes = 128

// capacityOf is the number of keys of a zone; 0 if the default of a policy has as much room.
func capacityOf(size string) uint64 {
	number, unit := strings.ToLower(size), uint64(1)
	if kilo, ok := strings.CutSuffix(number, "k"); ok {
		number, unit = kilo, 1<<10
	}
	if mega, ok := strings.CutSuffix(number, "m"); ok {
		number, unit = mega, 1<<20
	}
	units, err := strconv.ParseUint(number, 10, 32)
	if keys := units * unit / keyBytes; err == nil && keys > policy.DefaultCapacity {
		return min(keys, policy.MaxCapacity)
	}
	return 0
}

// addRules makes the rules of all plans. It returns the numbers of the limits that use a zone, each once.
func (n *reader) addRules(http *scope) (used map[*zone][]draft.Numbers) {
	used = map[*zone][]draft.Numbers{}
	for _, m := range modules {
		for _, p := range http.plans(m, request.Selection{}) {
			for _, d := range p.limits.list {
				z := n.zoneOf(m, d)
				if z == nil {
					continue
				}
				if numbers := n.addLimit(p, d, z); !slices.Contains(used[z], numbers) {
					used[z] = append(used[z], numbers)
				}
			}
		}
	}
	return used
}

// addLimit makes the rules of one limit of a plan: one for each form that the key of its zone has. It returns the
// numbers of the limit.
func (n *reader) addLimit(p plan, d *nginxconf.Directive, z *zone) draft.Numbers {
	limit := &draft.Limit{Shadow: p.limits.dryRun, At: source.PlaceOf(d)}
	if p.limits.dryRun && len(p.limits.list) > 1 {
		limit.Comment("nginx counts a request by none of these limits if one of them would deny it. In a " +
			"policy each rule in shadow mode counts by itself.")
	}
	if p.module == limitReq {
		n.readLimitReq(limit, z, d)
	} else {
		n.readLimitConn(limit, d)
	}
	for _, f := range n.variables.Counted(z.key) {
		n.addRule(p, z, limit, f)
	}
	return limit.Numbers
}

// zoneOf is the zone that a limit names; nil, and a problem, if there is none of the module.
func (n *reader) zoneOf(m module, d *nginxconf.Directive) *zone {
	name := d.Arg(0)
	if m == limitReq {
		name = ""
		for _, arg := range d.Args {
			if zone, ok := strings.CutPrefix(arg, "zone="); ok {
				name = zone
			}
		}
	}
	z := n.zones[zoneID{m, name}]
	if z == nil {
		n.Fail(source.PlaceOf(d), fmt.Sprintf("there is no %s_zone %q: give the file that has it too", m, name))
	}
	return z
}

// readLimitReq makes a token bucket of the rate of a zone and the burst of a limit.
func (n *reader) readLimitReq(limit *draft.Limit, z *zone, d *nginxconf.Directive) {
	burst := uint64(0)
	delaysNone := false
	delayed := "all that are beyond the rate"
	for _, arg := range d.Args {
		name, value, _ := strings.Cut(arg, "=")
		number, err := strconv.ParseUint(value, 10, 32)
		isNumber := err == nil && number > 0 && number < 1<<32-1
		switch {
		case name == "zone":
		case (name == "burst" || name == "delay") && !isNumber:
			n.Fail(limit.At, name+" must be a number from 1, not "+strconv.Quote(value))
		case name == "burst":
			burst = number
		case name == "delay":
			delaysNone = false
			delayed = "all but " + value + " of those that are beyond the rate"
		case arg == "nodelay":
			delaysNone = true
		default:
			n.Fail(limit.At, "unknown parameter "+strconv.Quote(arg))
		}
	}
	limit.Numbers = draft.TokenBucket(z.requests, z.per, burst+1)
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
	limit.Numbers = draft.Concurrency(number)
}

// addRule makes the rule of a limit for one form of its key.
func (n *reader) addRule(p plan, z *zone, limit *draft.Limit, f nginxkey.Form) {
	if p.requests.IsApart(f.Requests) {
		return
	}
	requests := p.requests
	requests.NarrowTo(f.Requests)
	t := draft.Terms{
		Name: z.name, At: limit.At, Limit: limit, Requests: requests, Key: f.Parts(), Capacity: z.capacity,
		CountsBy: draft.LimitID{At: z.at, Key: f.Template},
	}
	if p.limits.status != policyStatus {
		t.Enforcement.Response = &draft.Response{Status: uint32(p.limits.status)}
	}
	if countsWithMissing(f) {
		t.MissingKey = policy.MissingShare
		if isEmptyWithout(f) {
			t.Requests.Comment("nginx does not count a request without any part of the key. Here such requests count together.")
		}
	}
	n.Add(draft.NewRule(t))
}

// countsWithMissing reports whether nginx counts a request that lacks a part of the key: it takes the key for empty
// only if nothing else is in it. Examples of forms:
//
//	key                  without a header     without both
//	$http_a              not counted
//	u:$http_a            counted, as u:
//	$http_a$remote_addr  counted
//	$http_a$http_b       counted              not counted: isEmptyWithout
func countsWithMissing(f nginxkey.Form) bool {
	parts := f.Parts()
	return slices.ContainsFunc(parts, request.Part.MayBeMissing) && (len(parts) > 1 || f.Text != "")
}

// isEmptyWithout reports whether the key may be empty, because a request may lack all of it. The rule then limits more
// requests than the file says, and a comment says so: it is an exception to the invariant of package request.
func isEmptyWithout(f nginxkey.Form) bool {
	isAlwaysThere := func(p request.Part) bool { return !p.MayBeMissing() }
	return f.Text == "" && !slices.ContainsFunc(f.Parts(), isAlwaysThere)
}

// policyStatus is the status of a denial where a policy says none. That of nginx is 503: see readHTTPScope.
const policyStatus = 429

// noteZones notes the zones that no limit uses, or limits with other numbers than each other's. It goes by their
// names, so that the notes of one line always come in one order.
func (n *reader) noteZones(used map[*zone][]draft.Numbers) {
	byName := func(a, b zoneID) int { return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.name, b.name)) }
	for _, id := range slices.SortedFunc(maps.Keys(n.zones), byName) {
		z := n.zones[id]
		switch {
		case len(used[z]) == 0:
			n.Note(z.at, "no limit uses the zone "+z.name)
		case len(used[z]) > 1:
			n.Note(z.at, "nginx counts all requests of the zone "+z.name+" together. Here those with another burst or "+
				"limit count apart.")
		}
	}
}
