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
//
// A scope is made with what is in it. Its winners are set when those beside it are there: see chooseBeside.
type scope struct {
	label     string              // for messages
	limits    map[module]limitSet // its own and those that it inherits; none if it answers by itself
	selection request.Selection   // what fits its condition, in the scope around it: a match, or why none says it
	inner     []*scope            // those in it, to which nginx gives the requests that fit them
	winners   []*scope            // those beside it that nginx prefers for the requests that fit both
	hasHoles  bool                // as a winner over an expression it has not all that fit both: see hole
}

// chooseBeside sets the winners of scopes beside each other. WinsOver says of two of them, by their indexes, whether
// nginx prefers the one for requests that fit both.
func chooseBeside(list []*scope, winsOver func(one, other int) bool) {
	for i, s := range list {
		for k, other := range list {
			if k != i && winsOver(k, i) {
				s.winners = append(s.winners, other)
			}
		}
	}
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
	limits := n.readLimits(block, map[module]limitSet{limitReq: byDefault, limitConn: byDefault})
	inner := n.readServers(nginxconf.Named(block, "server"), limits)
	if len(inner) == 0 {
		return n.readServerBlock("http block", block, limits, request.Selection{})
	}
	return &scope{label: "http block", limits: limits, inner: inner}
}

// withoutLimits are the settings of limits alone.
func withoutLimits(limits map[module]limitSet) map[module]limitSet {
	none := map[module]limitSet{}
	for m, l := range limits {
		l.list = nil
		none[m] = l
	}
	return none
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
	at := source.PlaceOf(blocks[maxBeside])
	n.Fail(at, "there are more than "+strconv.Itoa(maxBeside)+" of them beside each other: give those with limits")
	return true
}

// plan is what rules are made of: the limits of a module that hold in a scope, and the requests that they are for.
type plan struct {
	module
	limits   limitSet
	requests request.Selection
}

// plans are what rules are made of in a scope and in those within it, for one module. Outer is for the requests of the
// scope around it. Each request that nginx gives to one of these scopes is in one plan:
//
//  1. All are the requests that nginx gives to the scope or to a scope within it: they fit it, and no winner.
//  2. Inner are the scopes within the scope that need rules of their own.
//  3. The rest are the requests that fit no inner scope. The scope's own rules are for these. There are none if an
//     inner scope isWhole.
//  4. Each inner scope has plans in the same way.
//
// An example is a server a.example with the limits S:
//
//	scope           its limits   fits   winners   own rules         its rules are for the rest
//	the server      S                                               a.example without /a* and ~.*x
//	location /a     A            /a*    ~ x$      as A is not S     a.example, /a* without ~.*x
//	location ~ x$   S            ~.*x             as it wins        a.example, ~.*x
//	location /b     S            /b*    ~ x$      no                none: the server's rules have its requests
//
// The same by paths:
//
//	path   fits       nginx gives it to   limits   which rule limits it
//	/a1    /a         /a                  A        that of /a
//	/ax    /a, ~ x$   ~ x$                S        that of ~ x$
//	/bx    /b, ~ x$   ~ x$                S        that of ~ x$
//	/b1    /b         /b                  S        the server's: they leave out /a and ~ x$ alone
//	/c1    none       the server          S        the server's
func (s *scope) plans(m module, outer request.Selection) (list []plan) {
	if slices.ContainsFunc(s.winners, (*scope).takesAll) {
		return nil // nginx gives it no request
	}
	won := s.selection
	exemptScopes(&won, slices.DeleteFunc(slices.Clone(s.winners), (*scope).isWhole))
	all := outer
	all.NarrowTo(won)
	inner := s.withOwnRules(m)
	if !slices.ContainsFunc(inner, (*scope).isWhole) { // else no request is left
		rest := all
		exemptScopes(&rest, inner)
		list = append(list, plan{m, s.limits[m], rest})
	}
	for _, c := range inner {
		list = append(list, c.plans(m, all)...)
	}
	return list
}

// withOwnRules are the inner scopes that need rules of their own: those with other limits, and those that win over one
// of these. In the example ~ x$ needs rules though its limits are those of the server: the server's rules leave out all
// of /a, and those of /a leave out ~ x$, so nothing would limit /ax. It wins over /b too, but that has no rules.
func (s *scope) withOwnRules(m module) []*scope {
	hasOwn := map[*scope]bool{}
	var add func(c *scope)
	add = func(c *scope) {
		if !hasOwn[c] {
			hasOwn[c] = true
			for _, winner := range c.winners {
				add(winner)
			}
		}
	}
	for _, c := range s.inner {
		if !c.hasOnly(m, s.limits[m]) {
			add(c)
		}
	}
	return slices.DeleteFunc(slices.Clone(s.inner), func(c *scope) bool { return !hasOwn[c] })
}

// hasOnly reports whether these limits of a module are those of the scope and of all scopes within it.
func (s *scope) hasOnly(m module, limits limitSet) bool {
	differs := func(c *scope) bool { return !c.hasOnly(m, limits) }
	return s.limits[m].same(limits) && !slices.ContainsFunc(s.inner, differs)
}

// isWhole reports whether every request of the outer scope fits, so the outer scope keeps none. A location / is so, and
// none of the example.
func (s *scope) isWhole() bool { return s.selection.IsEverything() }

// takesAll reports whether nothing is left for those that it wins over. One that isWhole leaves them its holes. Then no
// exemption says what else it takes, and their selection has that as a reason: see location.selection.
func (s *scope) takesAll() bool { return s.isWhole() && !s.hasHoles }

// exemptScopes exempts the requests that fit some scopes, none of which isWhole.
func exemptScopes(s *request.Selection, scopes []*scope) {
	selections := make([]request.Selection, len(scopes))
	for i, c := range scopes {
		selections[i] = c.selection
	}
	s.ExemptSelected(selections, func(i int, why request.WhyOff) request.WhyOff {
		return request.WhyOff("It should leave out the requests of the "+scopes[i].label+". ") + why
	})
}
