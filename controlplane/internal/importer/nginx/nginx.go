// Package nginx reads the limits of nginx, limit_req and limit_conn, and the annotations of ingress-nginx, of
// which that controller makes such limits.
//
// nginx has zones, which have a key and a rate, and limits, which name a zone and hold in a scope: http, a
// server or a location. An example:
//
//	limit_req_zone $binary_remote_addr zone=one:1m rate=5r/s;    a zone
//	server { server_name www.example; }                          a scope: the first server has all other hosts
//	server {
//	  server_name a.example;                                     a scope: the host is a.example
//	  location /login { limit_req zone=one burst=9; }            a scope in it, with a limit
//	}
//
// A rule comes of each scope, limit and form of the zone's key. Here it is one:
//
//	rules:
//	- name: one
//	  match: {hosts: [a.example], paths: [/login*]}          of the scopes (server.go, location.go)
//	  key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]    of the zone's key (key.go)
//	  algorithm: token_bucket
//	  limits: [{requests: 5, per: 1s, burst: 10}]            of the zone and the limit (zone.go, nginx.go)
//	  response: {status: 503}
//
// The calls of an import:
//
//	Read: readHTTP                                    nginx.go
//	  readZone, readVariable                          the zones, and what map and geo make (map.go)
//	  readHTTPScope: readServers, readLocations       the scopes (scope.go, server.go, location.go)
//	  addRules: addLimit, addRule                     a rule of each scope, limit and form of its key
//	    countedForms: formsOf                         the forms of a key (key.go)
//
//	ReadIngresses                                     ingress.go
//	  readIngress: pathsOf                            the hosts and paths of each Ingress (ingresspath.go)
//	  limitIngress: addRules                          a rule of each Ingress, annotation and group of hosts
//
// The tests are in the folder above: nginx_test.go compares decisions with those of a real nginx, and golden_test.go
// imports testdata/imports/nginx-*.txtar and ingress-nginx.txtar.
package nginx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Read makes rules of limit_req and limit_conn of nginx' configurations.
//
// A limit_req with rate r and burst b is a token bucket of r with b + 1 tokens. nginx keeps the excess e
// of a key, in thousandths of a request (ngx_http_limit_req_lookup in ngx_http_limit_req_module.c).
// For a new key e is 0. A request after t seconds makes it max(0, e - r·t + 1), and is denied if
// that is more than b; a denied request changes nothing. With b - e tokens left, that is the bucket:
// it has min(b+1, tokens + r·t) tokens, and a request takes one if there is one.
// Whether a request is delayed does not change that, because it counts when it arrives.
//
// The error is about a file that cannot be parsed. Other problems are left in the draft.
func Read(d *draft.Draft, files []source.File, include Include) error {
	n := newReader(d)
	var http []*nginxconf.Directive
	for _, f := range files {
		list, err := parse(f, include)
		if err != nil {
			return err
		}
		http = append(http, list...)
	}
	n.readHTTP(http)
	return nil
}

// Include finds the files that a file of nginx includes.
type Include func(file, pattern string) ([]source.File, error)

// reader is one import of nginx' configurations.
type reader struct {
	*draft.Draft

	// readHTTP reads these before it makes rules.
	zones     map[string]*zone   // by their kind and name, such as "limit_req one"
	variables map[string]mapping // those of map and geo
	servers   []*server
}

func newReader(d *draft.Draft) *reader {
	return &reader{Draft: d, zones: map[string]*zone{}, variables: map[string]mapping{}}
}

// The kinds of limits. Each is inherited by itself.
const (
	limitReq  = "limit_req"
	limitConn = "limit_conn"
)

// parse reads a file and its includes. Of a file that has http blocks it is what they have, and what
// stands beside them, as in a file that is included in one.
func parse(f source.File, include Include) (list []*nginxconf.Directive, err error) {
	var included nginxconf.Include
	if include != nil {
		included = func(glob string) (found []nginxconf.File, err error) {
			files, err := include(f.Name, glob)
			for _, f := range files {
				found = append(found, nginxconf.File(f))
			}
			return found, err
		}
	}
	read, err := nginxconf.Parse(nginxconf.File(f), included)
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

func placeOf(d *nginxconf.Directive) source.Place {
	return source.Place{File: d.File, Path: d.Name, Line: d.Line}
}

// readHTTP makes rules of an http block.
func (n *reader) readHTTP(block []*nginxconf.Directive) {
	for _, d := range block {
		switch d.Name {
		case limitReq + "_zone", limitConn + "_zone":
			n.readZone(d)
		case "map", "geo":
			n.readVariable(d)
		}
	}
	n.noteUnread(block)
	http := n.readHTTPScope(block)
	if n.Err() != nil {
		return
	}
	n.addRules(limitReq, http, request.Selection{})
	n.addRules(limitConn, http, request.Selection{})
	n.noteZones()
	n.SortByLine()
}

// noteUnread notes what bears upon limits and is not in the policy.
func (n *reader) noteUnread(block []*nginxconf.Directive) {
	for _, d := range block {
		at := placeOf(d)
		switch d.Name {
		case "include":
			n.Note(at, "the file "+d.Arg(0)+" is not here, so limits in it are left out")
		case "limit_rate", "limit_rate_after":
			n.Note(at, "ignored: it limits bytes a second, and a policy limits requests")
		case "real_ip_header", "proxy_protocol":
			n.Note(at, "Envoy finds the client's address by its own settings: set them to the same")
		case "rewrite":
			n.Note(at, "nginx takes the limits of the location of the new path. Here rules match the path that the client sent.")
		case "if":
			if answersItself(d.Block) {
				n.Note(at, "nginx answers these requests without counting them. Here the rules count them, unless you exempt them.")
			}
		case "stream":
			if len(nginxconf.Named(flat(d.Block), limitConn)) > 0 {
				n.Note(at, "ignored: its limit_conn limits connections of TCP, and a policy limits requests")
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

// addRules makes the rules for the limits of a kind in a scope, and in those within it. Outer is for the requests of
// the scope around it. See the example of scope: its last column is what addRules selects.
func (n *reader) addRules(kind string, s *scope, outer request.Selection) {
	all := outer.And(s.Selection)
	inner := s.withOwnRules(kind)
	rest := all      // without the requests of the inner scopes
	isEmpty := false // no request is left
	for _, c := range inner {
		exemptScope(&rest, c)
		isEmpty = isEmpty || c.isWhole()
	}
	if !isEmpty {
		for _, d := range s.limits[kind].list {
			n.addLimit(kind, d, s.limits[kind], rest)
		}
	}
	for _, c := range inner {
		n.addRules(kind, c, all)
	}
}

// addLimit makes the rules of one limit for the requests of a scope: one for each form that its key has.
func (n *reader) addLimit(kind string, d *nginxconf.Directive, limits limitSet, requests request.Selection) {
	z := n.zoneOf(kind, d)
	if z == nil {
		return
	}
	q := &draft.Quota{Numbers: z.Numbers, Shadow: limits.dryRun, At: placeOf(d)}
	if limits.dryRun && len(limits.list) > 1 {
		q.Comment("nginx counts a request by none of these limits if one of them would deny it. In a " +
			"policy each rule in shadow mode counts by itself.")
	}
	if kind == limitReq {
		n.readLimitReq(q, d)
	} else {
		n.readLimitConn(q, d)
	}
	if !slices.Contains(z.used, q.Numbers) {
		z.used = append(z.used, q.Numbers)
	}
	for _, f := range n.countedForms(z.key) {
		n.addRule(z, q, f, limits.status, requests)
	}
}

// readLimitReq reads burst, nodelay and delay.
func (n *reader) readLimitReq(q *draft.Quota, d *nginxconf.Directive) {
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
			n.Fail(q.At, "unknown parameter "+strconv.Quote(arg))
		}
	}
	q.Burst = burst + 1
	if burst > 0 && !delaysNone {
		q.Comment("nginx admits the requests of the burst, and delays " + delayed + ". A policy delays " +
			"none: the rule admits the same requests, and they pass at once.")
	}
}

// readLimitConn reads the number of requests that may run at once.
func (n *reader) readLimitConn(q *draft.Quota, d *nginxconf.Directive) {
	number, err := strconv.ParseUint(d.Arg(1), 10, 16)
	if err != nil || number == 0 || len(d.Args) != 2 {
		n.Fail(q.At, "needs a zone and a number of connections from 1 to 65535")
	}
	q.Requests = number
}

// addRule makes the rule of a limit for one form of its key.
func (n *reader) addRule(z *zone, q *draft.Quota, f keyForm, status uint64, requests request.Selection) {
	if requests.Match.IsApart(f.Match) {
		return
	}
	r := newRule(n.Findings, z.name, q, requests.And(f.Selection))
	r.Key = f.parts
	r.Capacity = z.capacity
	if status != defaultStatus {
		r.Response = &draft.Response{Status: uint32(status)}
	}
	r.Identity = fmt.Sprint(z.at, q.Numbers, f.text)
	if len(f.parts) > 1 && slices.ContainsFunc(f.parts, request.Part.MayBeMissing) {
		r.MissingKey = string(policy.MissingShare)
		if !slices.ContainsFunc(f.parts, func(p request.Part) bool { return !p.MayBeMissing() }) {
			r.Comment("nginx does not count a request without any part of the key. Here such requests count together.")
		}
	}
	n.Rules = append(n.Rules, r)
}

// newRule begins the rule of a limit for the requests of a selection. The caller sets the key.
func newRule(findings *draft.Findings, name string, q *draft.Quota, s request.Selection) *draft.Rule {
	s.Exempt = request.Joined(s.Exempt)
	return draft.NewRule(findings, name, q.At, q, s)
}

// defaultStatus is the status of a denial that a policy need not say.
const defaultStatus = 429
