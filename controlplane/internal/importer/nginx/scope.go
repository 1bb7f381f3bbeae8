package nginx

import (
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/nginxkey"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// scope is what nginx inherits limits by: http, a server or a location. nginx finds one scope for a request, and only
// the limits of that one hold. All fields are set before plans says which rules come of them:
//
//	                of a server                 of a location
//	what, limits    newScope                    newScope
//	fits            selectHosts, leaveTo        selectPath, refuseRegex
//	winners         leaveTo                     readLocations
//	inner           readLocations               readLocations; of http readServers, or else readLocations
type scope struct {
	what    string              // for messages
	limits  map[string]limitSet // by kind: its own and those that it inherits
	fits    request.Selection   // what fits its condition, in the scope around it: a match, or why none says it
	winners []*scope            // those beside it that nginx prefers for the requests that fit both
	inner   []*scope            // those in it, to which nginx gives the requests that fit them
}

// limitSet has the limits of a kind that hold in a scope, with their settings.
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

// readHTTPScope reads the scopes of an http block.
func (n *reader) readHTTPScope(block []*nginxconf.Directive) (http *scope) {
	unlimited := limitSet{status: 503} // as nginx answers by default
	http = n.newScope("http block", block, map[string]limitSet{limitReq: unlimited, limitConn: unlimited})
	n.readServers(http, nginxconf.Named(block, "server"))
	if len(http.inner) == 0 { // a part of a server
		n.readLocations(http, block, false)
	}
	return http
}

// newScope makes a scope of a block, with the limits that the scope around it has.
func (n *reader) newScope(what string, block []*nginxconf.Directive, around map[string]limitSet) *scope {
	return &scope{what: what, limits: n.readLimits(block, around)}
}

// readLimits are the limits that hold in a block. Each kind and each setting of its own replaces that around it.
func (n *reader) readLimits(block []*nginxconf.Directive, around map[string]limitSet) map[string]limitSet {
	limits := map[string]limitSet{}
	for _, kind := range kinds {
		l := around[kind]
		if own := nginxconf.Named(block, kind); len(own) > 0 {
			l.list = own
		}
		for _, d := range nginxconf.Named(block, kind+"_status") {
			status, err := strconv.ParseUint(d.Arg(0), 10, 32)
			if err != nil || status < 400 || status > 599 {
				n.Fail(nginxkey.PlaceOf(d), "must be a status from 400 to 599")
			}
			l.status = status
		}
		for _, d := range nginxconf.Named(block, kind+"_dry_run") {
			l.dryRun = d.Arg(0) == "on"
		}
		if answersItself(block) {
			l.list = nil
		}
		limits[kind] = l
	}
	return limits
}

// answersItself reports whether nginx answers all requests of a block before it looks at limits.
func answersItself(block []*nginxconf.Directive) bool {
	return len(nginxconf.Named(block, "return"))+len(nginxconf.Named(block, "internal")) > 0
}

// maxBeside bounds the servers, and the locations of one block: each is compared with each other.
const maxBeside = 1000

func (n *reader) areTooMany(blocks []*nginxconf.Directive) bool {
	if len(blocks) <= maxBeside {
		return false
	}
	at := nginxkey.PlaceOf(blocks[maxBeside])
	n.Fail(at, "there are more than "+strconv.Itoa(maxBeside)+" of them beside each other: give those with limits")
	return true
}
