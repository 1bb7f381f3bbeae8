package nginx

import (
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// scope is what nginx inherits limits by: http, a server or a location. A request may fit several scopes beside each
// other. nginx gives it to the one that wins, and then to one within that, if it fits any. Only the limits of the last
// one hold.
type scope struct {
	label     string              // for messages
	limits    map[module]limitSet // its own and those that it inherits; none if it answers by itself
	selection request.Selection   // what fits its condition, in the scope around it: a match, or why none says it
	inner     []innerScope        // those in it, to which nginx gives the requests that fit them
}

// innerScope is a scope in another one.
type innerScope struct {
	*scope
	winners []*scope // those beside it that nginx prefers for the requests that fit both
}

// beside are scopes beside each other. WinsOver says of two of them, by their indexes, whether nginx prefers the one
// for requests that fit both.
func beside(list []*scope, winsOver func(one, other int) bool) (scopes []innerScope) {
	for i, s := range list {
		var winners []*scope
		for k, other := range list {
			if k != i && winsOver(k, i) {
				winners = append(winners, other)
			}
		}
		scopes = append(scopes, innerScope{s, winners})
	}
	return scopes
}

// limitSet has the limits of a module that hold in a scope, with their settings.
type limitSet struct {
	list   []*nginxconf.Directive
	status uint64
	dryRun bool
}

// same reports whether the limits are the same, and denied requests get the same.
func (l limitSet) same(other limitSet) bool {
	settings := l.status == other.status && l.dryRun == other.dryRun
	return slices.Equal(l.list, other.list) && (settings || len(l.list) == 0)
}

// readHTTPScope reads the scopes of an http block. What has no server is a part of one.
func (n *reader) readHTTPScope(block []*nginxconf.Directive) *scope {
	byDefault := limitSet{status: 503} // as nginx answers by default
	around := map[module]limitSet{limitReq: byDefault, limitConn: byDefault}
	servers := nginxconf.Named(block, "server")
	if len(servers) == 0 {
		return n.readServerBody(n.newBody("http block", block), around, request.Selection{})
	}
	limits := n.readLimits(block, around)
	return &scope{label: "http block", limits: limits, inner: n.readServers(servers, limits)}
}

// body is what a server or a location has in its braces.
type body struct {
	label     string // of the server or location, for messages
	list      []*nginxconf.Directive
	locations []*location
	answers   bool // all requests, before nginx looks at limits
}

func (n *reader) newBody(label string, list []*nginxconf.Directive) body {
	return body{label, list, n.locationsIn(list), answersItself(list)}
}

// readServerBody is the scope of a server, for the requests of a selection. The locations of one that answers are read
// only to say what is wrong in them.
func (n *reader) readServerBody(b body, around map[module]limitSet, selection request.Selection) *scope {
	s := n.readBody(b, around, selection, nil)
	if b.answers {
		s.inner = nil
	}
	return s
}

// readBody is the scope of a location, or of a server with its locations. The expressions are those of readLocations.
func (n *reader) readBody(
	b body, around map[module]limitSet, selection request.Selection, expressions []*location,
) *scope {
	limits := n.readLimits(b.list, around)
	inner := n.readLocations(b.locations, limits, expressions)
	s := &scope{label: b.label, limits: limits, selection: selection, inner: inner}
	if b.answers {
		s.limits = nil
	}
	return s
}

// answersItself reports whether nginx answers all requests of a block before it looks at limits, so none of the block
// hold. Where a server does so, nginx looks for no location. A location passes its limits on to those within it all the
// same: the return of /a is not that of /a/b.
func answersItself(block []*nginxconf.Directive) bool {
	return len(nginxconf.Named(block, "return"))+len(nginxconf.Named(block, "internal")) > 0
}

// readLimits are the limits that a block passes on to those within it: its own, and those around it. Its
// limits of a module, and each setting of its own, replace those around it.
func (n *reader) readLimits(block []*nginxconf.Directive, around map[module]limitSet) map[module]limitSet {
	limits := map[module]limitSet{}
	for _, m := range modules {
		l := around[m]
		if listed := m.named(block, ""); len(listed) > 0 {
			l.list = listed
		}
		for _, d := range m.named(block, "_status") {
			status, err := strconv.ParseUint(d.Arg(0), 10, 32)
			if err != nil || status < 400 || status > 599 {
				n.Fail(source.PlaceOf(d), "must be a status from 400 to 599")
			}
			l.status = status
		}
		for _, d := range m.named(block, "_dry_run") {
			l.dryRun = d.Arg(0) == "on"
		}
		limits[m] = l
	}
	return limits
}

// maxBeside bounds the servers, and the locations of one block: each is compared with each other.
const maxBeside = 1000

// refuseTooMany fails if there are more blocks than maxBeside, and reports whether it does.
func (n *reader) refuseTooMany(blocks []*nginxconf.Directive) (refuses bool) {
	if len(blocks) <= maxBeside {
		return false
	}
	at := source.PlaceOf(blocks[maxBeside])
	n.Fail(at, "there are more than "+strconv.Itoa(maxBeside)+" of them beside each other: give those with limits")
	return true
}
