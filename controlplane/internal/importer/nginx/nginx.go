// Package nginx reads the limits of nginx: limit_req and limit_conn.
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
//	  key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]    of the zone's key (nginxkey)
//	  algorithm: token_bucket
//	  limits: [{requests: 5, per: 1s, burst: 10}]            of the zone and the limit (rules.go)
//	  response: {status: 503}
//
// The calls of an import:
//
//	Read: readHTTP                                    nginx.go
//	  readZone, nginxkey.Variables.Read               the zones, and what map and geo make
//	  readHTTPScope: readServers, readLocations       the scopes (scope.go, server.go, location.go)
//	  addRules: addLimit, addRule                     a rule of each scope, limit and form of its key (rules.go)
//	    scope.plans                                   for which requests the limits of each scope are (plan.go)
//	    nginxkey.Variables.Counted                    the forms of a key
//
// Tests are in the folder above too: nginx_test.go compares decisions with those of a real nginx, and golden_test.go
// imports testdata/imports/nginx-*.txtar.
package nginx

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/nginxkey"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// Read makes rules of limit_req and limit_conn of nginx' configurations.
//
// A limit_req with rate r and burst b is a token bucket of r with b + 1 tokens. nginx keeps the excess e
// of a key, in thousandths of a request (ngx_http_limit_req_lookup in ngx_http_limit_req_module.c).
// For a new key e is 0. A request after t seconds makes it max(0, e - r·t + 1), and is denied if
// that is more than b; a denied request changes nothing. With b - e tokens left, that is the bucket:
// it has min(b+1, tokens + r·t) tokens, and a request takes one if there is one.
// Whether a request is delayed does not change that, because it counts when it arrives. One thing differs: nginx rounds
// the rate down to thousandths of a request a second. So 1r/m is 0.96 a minute there, and no rate differs by more.
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
	zones     map[zoneID]*zone
	variables *nginxkey.Variables
}

func newReader(d *draft.Draft) *reader {
	return &reader{Draft: d, zones: map[zoneID]*zone{}}
}

// module is one of nginx' modules that limit. A block inherits the limits of each by themselves.
type module string

const (
	limitReq  module = "limit_req"
	limitConn module = "limit_conn"
)

var modules = []module{limitReq, limitConn}

// named are the directives of a module in a block that have this end behind its name.
func (m module) named(block []*nginxconf.Directive, end string) []*nginxconf.Directive {
	return nginxconf.Named(block, string(m)+end)
}

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

// readHTTP makes rules of an http block.
func (n *reader) readHTTP(block []*nginxconf.Directive) {
	n.variables = nginxkey.New(n.Findings, noteOfServerName(nginxconf.Named(block, "server")))
	for _, d := range block {
		switch d.Name {
		case "limit_req_zone", "limit_conn_zone":
			n.readZone(d)
		case "map", "geo":
			n.variables.Read(d)
		}
	}
	n.noteUnread(block)
	http := n.readHTTPScope(block)
	if n.Err() != nil {
		return
	}
	n.noteZones(n.addRules(http))
	n.SortByLine()
}

// noteUnread notes what bears upon limits and is not in the policy.
func (n *reader) noteUnread(block []*nginxconf.Directive) {
	for _, d := range block {
		at := source.PlaceOf(d)
		switch d.Name {
		case "include":
			n.Note(at, "the file "+d.Arg(0)+" is not here, so limits in it are left out")
		case "limit_rate", "limit_rate_after":
			n.Note(at, "ignored: it limits bytes a second, and a policy limits requests")
		case "real_ip_header", "proxy_protocol":
			n.Note(at, "Envoy finds the client's address by its own settings: set them to the same")
		case "rewrite":
			n.Note(at, "nginx takes the limits of the location of the new path. Here rules match the path that the "+
				"client sent.")
		case "if":
			if answersItself(d.Block) {
				n.Note(at, "nginx answers these requests without counting them. Here the rules count them, unless you "+
					"exempt them.")
			}
		case "stream":
			if len(limitConn.named(flat(d.Block), "")) > 0 {
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
