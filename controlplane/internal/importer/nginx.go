package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Nginx imports limit_req and limit_conn of nginx' configurations.
//
// A limit_req with rate r and burst b is a token bucket of r with b + 1 tokens. nginx keeps the excess e
// of a key, in thousandths of a request (ngx_http_limit_req_lookup in ngx_http_limit_req_module.c).
// For a new key e is 0. A request after t seconds makes it max(0, e - r·t + 1), and is denied if
// that is more than b; a denied request changes nothing. With b - e tokens left, that is the bucket:
// it has min(b+1, tokens + r·t) tokens, and a request takes one if there is one.
// Whether a request is delayed does not change that, because it counts when it arrives.
func Nginx(files []File, o Options) (Imported, error) {
	j := &job{reader: newReader(o.Cluster), options: o, keys: &keyParts{}, draft: draft{from: "nginx"}}
	n := &nginxImport{job: j, zones: map[string]*nginxZone{}, variables: map[string]nginxVariable{}}
	var http []*nginxconf.Directive
	for _, f := range files {
		list, err := n.parse(f)
		if err != nil {
			return Imported{}, err
		}
		http = append(http, list...)
		j.files = append(j.files, &source{file: f.Name})
	}
	n.importHTTP(http)
	if err := j.err(); err != nil {
		return Imported{}, err
	}
	return j.finish()
}

// nginxImport is one import of nginx' configurations.
type nginxImport struct {
	*job
	zones     map[string]*nginxZone    // by their kind and name, such as "limit_req one"
	variables map[string]nginxVariable // those of map and geo
	server    string                   // why $server_name is not the host; empty if it is
}

// nginxZone is what a limit_req_zone or a limit_conn_zone says.
type nginxZone struct {
	numbers  // of a limit_req_zone, without burst
	name     string
	key      string
	capacity uint64 // 0 = the default
	at       place
	used     []numbers // by its limits, each once
}

// The kinds of limits. Each is inherited by itself.
const (
	limitReq  = "limit_req"
	limitConn = "limit_conn"
)

// parse reads a file and its includes. Of a file that has http blocks it is what they have, and what
// stands beside them, as in a file that is included in one.
func (n *nginxImport) parse(f File) (list []*nginxconf.Directive, err error) {
	var include nginxconf.Include
	if n.options.Include != nil {
		include = func(glob string) (found []nginxconf.File, err error) {
			files, err := n.options.Include(f.Name, glob)
			for _, f := range files {
				found = append(found, nginxconf.File(f))
			}
			return found, err
		}
	}
	read, err := nginxconf.Parse(nginxconf.File(f), include)
	if err != nil {
		return nil, err
	}
	for _, d := range read {
		if d.Name == "http" {
			list = append(list, d.Block...)
		} else {
			list = append(list, d)
		}
	}
	return list, nil
}

func placeOf(d *nginxconf.Directive) place { return place{file: d.File, path: d.Name, line: d.Line} }

// importHTTP makes rules of an http block.
func (n *nginxImport) importHTTP(block []*nginxconf.Directive) {
	for _, d := range block {
		switch d.Name {
		case limitReq + "_zone", limitConn + "_zone":
			n.readZone(d)
		case "map", "geo":
			n.readVariable(d)
		}
	}
	n.noteUnread(block)
	http := n.httpScope(block)
	if n.err() != nil {
		return
	}
	n.rulesOf(limitReq, http, selection{})
	n.rulesOf(limitConn, http, selection{})
	n.noteZones()
	slices.SortStableFunc(n.notes, func(a, b note) int { return cmp.Compare(a.Line, b.Line) })
}

// noteZones notes the zones that no limit uses, or limits with other numbers than each other's.
func (n *nginxImport) noteZones() {
	for _, z := range n.zones {
		switch {
		case len(z.used) == 0:
			n.note(z.at, "no limit uses the zone "+z.name)
		case len(z.used) > 1:
			n.note(z.at, "nginx counts all requests of the zone "+z.name+" together. Here those with another burst or "+
				"limit count apart.")
		}
	}
}

// readZone reads limit_req_zone KEY zone=NAME:SIZE rate=RATE, or limit_conn_zone without a rate.
func (n *nginxImport) readZone(d *nginxconf.Directive) {
	z := &nginxZone{key: d.Arg(0), at: placeOf(d), numbers: numbers{algorithm: "token_bucket"}}
	kind := strings.TrimSuffix(d.Name, "_zone")
	for _, arg := range d.Args[min(1, len(d.Args)):] {
		switch name, value, _ := strings.Cut(arg, "="); {
		case name == "zone":
			var size string
			z.name, size, _ = strings.Cut(value, ":")
			z.capacity = capacityOf(size)
		case name == "rate" && kind == limitReq:
			n.readRate(z, value)
		case arg == "sync":
			n.note(z.at, "sync: each Envoy counts for itself, and --scope cluster makes rules that count over all")
		default:
			n.fail(z.at, "unknown parameter "+strconv.Quote(arg))
		}
	}
	if kind == limitConn {
		z.algorithm = "concurrency"
	}
	switch id := kind + " " + z.name; {
	case z.name == "" || z.key == "":
		n.fail(z.at, "needs a key and zone=NAME:SIZE")
	case n.zones[id] != nil:
		n.fail(z.at, "there is a zone "+z.name+" already")
	case kind == limitReq && z.requests == 0:
		n.fail(z.at, "needs a rate of at least 1r/m")
	default:
		n.zones[id] = z
	}
}

// readRate reads a rate such as 10r/s or 30r/m.
func (n *nginxImport) readRate(z *nginxZone, text string) {
	z.per = "1s"
	number, ok := strings.CutSuffix(text, "r/s")
	if !ok {
		z.per = "1m"
		number, ok = strings.CutSuffix(text, "r/m")
	}
	requests, err := strconv.ParseUint(number, 10, 32)
	if !ok || err != nil {
		n.fail(z.at, "rate must be a number of requests such as 10r/s or 30r/m, not "+strconv.Quote(text))
	}
	z.requests = requests
}

// keysPerMiB is how many keys nginx has room for in a MiB of a zone, each in 128 bytes.
const keysPerMiB = 8192

// defaultCapacity is the capacity of a rule that says none.
const defaultCapacity = 65536

// capacityOf is the number of keys of a zone; 0 if the default of a policy has as much room.
func capacityOf(size string) uint64 {
	number, isMega := strings.CutSuffix(strings.ToLower(size), "m")
	mega, err := strconv.ParseUint(number, 10, 32)
	if keys := mega * keysPerMiB; err == nil && isMega && keys > defaultCapacity {
		return min(keys, policy.MaxCapacity)
	}
	return 0
}

// noteUnread notes what bears upon limits and is not in the policy.
func (n *nginxImport) noteUnread(block []*nginxconf.Directive) {
	for _, d := range block {
		at := placeOf(d)
		switch d.Name {
		case "include":
			n.note(at, "the file "+d.Arg(0)+" is not here, so limits in it are left out")
		case "limit_rate", "limit_rate_after":
			n.note(at, "ignored: it limits bytes a second, and a policy limits requests")
		case "real_ip_header", "proxy_protocol":
			n.note(at, "Envoy finds the client's address by its own settings: set them to the same")
		case "rewrite":
			n.note(at, "nginx takes the limits of the location of the new path. Here rules match the path that the client sent.")
		case "if":
			if answersItself(d.Block) {
				n.note(at, "nginx answers these requests without counting them. Here the rules count them, unless you exempt them.")
			}
		case "stream":
			if len(nginxconf.Named(flat(d.Block), limitConn)) > 0 {
				n.note(at, "ignored: its limit_conn limits connections of TCP, and a policy limits requests")
			}
			continue
		}
		n.noteUnread(d.Block)
	}
}

// flat are all directives of a block and of the blocks in it.
func flat(block []*nginxconf.Directive) (list []*nginxconf.Directive) {
	for _, d := range block {
		list = append(append(list, d), flat(d.Block)...)
	}
	return list
}

// rulesOf makes the rules for the limits of a kind in a scope, and in those within it.
func (n *nginxImport) rulesOf(kind string, s *nginxScope, outer selection) {
	all := outer.and(s.selection)
	inner := s.withOwnRules(kind)
	rest := all // without the requests of those
	rest.exempt = slices.Clone(all.exempt)
	isEmpty := false
	for _, c := range inner {
		rest.exemptScope(c)
		isEmpty = isEmpty || c.isWhole()
	}
	if !isEmpty {
		for _, d := range s.limits[kind].list {
			n.addLimit(kind, d, s.limits[kind], rest)
		}
	}
	for _, c := range inner {
		n.rulesOf(kind, c, all)
	}
}

// addLimit makes the rules of one limit for the requests of a scope: one for each form that its key has.
func (n *nginxImport) addLimit(kind string, d *nginxconf.Directive, limits nginxLimits, requests selection) {
	z := n.zoneOf(kind, d)
	if z == nil {
		return
	}
	q := &quota{numbers: z.numbers, shadow: limits.dryRun, at: placeOf(d)}
	if limits.dryRun && len(limits.list) > 1 {
		q.notes = append(q.notes, "nginx counts a request by none of these limits if one of them would deny it. In a policy "+
			"each rule in shadow mode counts by itself.")
	}
	if kind == limitReq {
		n.readLimitReq(q, d)
	} else {
		n.readLimitConn(q, d)
	}
	if !slices.Contains(z.used, q.numbers) {
		z.used = append(z.used, q.numbers)
	}
	forms, why := n.formsOf(z.key, 0)
	if why != "" {
		forms = []keyForm{{selection: selection{whyOff: []string{why}}, text: "?"}}
	}
	for _, f := range forms {
		if len(f.parts) > 0 || f.text != "" { // nginx does not count an empty key
			n.addRule(z, q, f, limits.status, requests)
		}
	}
}

// zoneOf is the zone that a limit names; nil, and a problem, if there is none of that kind.
func (n *nginxImport) zoneOf(kind string, d *nginxconf.Directive) *nginxZone {
	name := d.Arg(0)
	if kind == limitReq {
		name = ""
		for _, arg := range d.Args {
			if zone, ok := strings.CutPrefix(arg, "zone="); ok {
				name = zone
			}
		}
	}
	z := n.zones[kind+" "+name]
	if z == nil {
		n.fail(placeOf(d), fmt.Sprintf("there is no %s_zone %q: give the file that has it too", kind, name))
	}
	return z
}

// readLimitReq reads burst, nodelay and delay.
func (n *nginxImport) readLimitReq(q *quota, d *nginxconf.Directive) {
	delays, burst := "", uint64(0)
	for _, arg := range d.Args {
		name, value, _ := strings.Cut(arg, "=")
		number, err := strconv.ParseUint(value, 10, 32)
		isNumber := err == nil && number < 1<<32-1
		switch {
		case name == "zone":
		case name == "burst" && isNumber && number > 0:
			burst = number
			delays = cmp.Or(delays, "all that are beyond the rate")
		case name == "delay" && isNumber:
			delays = "all but " + value + " of those that are beyond the rate"
		case arg == "nodelay":
			delays = "none"
		default:
			n.fail(q.at, "unknown parameter "+strconv.Quote(arg))
		}
	}
	q.burst = burst + 1
	if burst > 0 && delays != "none" {
		q.notes = append(q.notes, "nginx admits the requests of the burst, and delays "+delays+". A policy delays none: the "+
			"rule admits the same requests, and they pass at once.")
	}
}

// readLimitConn reads the number of requests that may run at once.
func (n *nginxImport) readLimitConn(q *quota, d *nginxconf.Directive) {
	number, err := strconv.ParseUint(d.Arg(1), 10, 16)
	if err != nil || number == 0 || len(d.Args) != 2 {
		n.fail(q.at, "needs a zone and a number of connections from 1 to 65535")
	}
	q.requests = number
}

// addRule makes the rule of a limit for one form of its key.
func (n *nginxImport) addRule(z *nginxZone, q *quota, f keyForm, status uint64, requests selection) {
	all, hasAny := requests.meet(f.selection)
	if !hasAny {
		return
	}
	m := newMakerOf(n.reader, z.name, q, all)
	m.rule.Key = f.parts
	m.rule.Capacity = z.capacity
	if status != defaultStatus {
		m.rule.Response = &response{Status: uint32(status)}
	}
	m.rule.identity = place{path: fmt.Sprint(z.at, q.numbers, f.text)}
	if len(f.parts) > 1 && slices.ContainsFunc(f.parts, part.mayBeMissing) {
		m.rule.MissingKey = string(policy.MissingShare)
		if !slices.ContainsFunc(f.parts, func(p part) bool { return !p.mayBeMissing() }) {
			m.comment("nginx does not count a request without any part of the key. Here such requests count together.")
		}
	}
	n.draft.rules = append(n.draft.rules, m.finish())
}

// defaultStatus is the status of a denial that a policy need not say.
const defaultStatus = 429

// mayBeMissing reports whether a request may lack the part.
func (p part) mayBeMissing() bool {
	return p.kind == kindHeader || p.kind == kindQuery || p.kind == kindCookie
}
