package nginx

import (
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// scope is what nginx inherits limits by: http, a server or a location. nginx finds one location for a request, and
// only its limits hold. So of the scopes that a request fits one has it, and the rules of the others leave it out:
//
//	between                 nginx gives the request to                    this exempts it from the other's rules
//	two servers             the one with the narrower name: areNarrower   requests, as it is a winner
//	two locations           the winner in nginx' order: winsOver          requests, as it is a winner
//	a scope and one in it   the inner one                                 addRules, if the inner one has own rules:
//	                                                                      withOwnRules
//
// An example, to which the functions below refer: a server a.example with the limits S. nginx gives /ax and /bx to the
// expression.
//
//	scope           its limits   its requests            own rules                    a rule of them is for
//	the server      S            a.example                                            a.example without /a* and ~.*x
//	location /a     A            /a* without ~.*x        yes: A is not S              a.example, /a* without ~.*x
//	location ~ x$   S            ~.*x                    yes: it wins over /a         a.example, ~.*x
//	location /b     S            /b* without ~.*x        no                           none: the server's has its requests
//
// The same by paths:
//
//	path   fits       nginx gives it to   limits   which rule limits it
//	/a1    /a         /a                  A        that of /a
//	/ax    /a, ~ x$   ~ x$                S        that of ~ x$
//	/bx    /b, ~ x$   ~ x$                S        that of ~ x$
//	/b1    /b         /b                  S        the server's: /b has no own rules, and the server's leave out /a, ~ x$
//	/c1    none       the server          S        the server's
type scope struct {
	fits    request.Selection   // the requests of the scope around it that fit its condition: a match, or why none says it
	winners []*scope            // beside it: nginx gives them the requests that fit both
	inner   []*scope            // it has their requests too
	limits  map[string]limitSet // by kind
	what    string              // for messages

	// A location around has expressions beside it. nginx tries those within it first, which no match can say: here b$
	// before a$.
	//
	//	location ~ a$ { ... }
	//	location / { location ~ b$ { ... } }     the flag is of both of this line
	besideRegex bool
}

// requests are those that nginx gives to the scope, of those of the scope around it.
func (s *scope) requests() request.Selection { return without(s.fits, s.winners) }

// without is a selection without the requests of some scopes.
func without(s request.Selection, scopes []*scope) request.Selection {
	var exempt []request.Match
	for _, c := range scopes {
		switch {
		case len(c.fits.WhyOff) > 0:
			s.Cannot("It should leave out the requests of the " + c.what + ". " + c.fits.WhyOff[0])
		case len(c.fits.Match) > 0:
			exempt = append(exempt, c.fits.Match)
		}
	}
	s.AddExempt(exempt...)
	return s
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

// isWhole reports whether the scope has no condition of its own: it has all requests of the scope around it but those
// of winners, so none is left for that one. A location / is so, and none of the example.
func (s *scope) isWhole() bool { return s.fits.IsEverything() }

// isUniform reports whether these limits of a kind are those of the scope and of all scopes within it.
func (s *scope) isUniform(kind string, limits limitSet) bool {
	differs := func(c *scope) bool { return !c.isUniform(kind, limits) }
	return s.limits[kind].same(limits) && !slices.ContainsFunc(s.inner, differs)
}

// withOwnRules are the inner scopes that need rules of their own: those with other limits, and those that win over one
// of these. In the example ~ x$ needs rules though its limits are those of the server: the server's rules leave out all
// of /a, and those of /a leave out ~ x$, so nothing would limit /ax. It wins over /b too, but that has no rules.
func (s *scope) withOwnRules(kind string) []*scope {
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
		if !c.isUniform(kind, s.limits[kind]) {
			add(c)
		}
	}
	return slices.DeleteFunc(slices.Clone(s.inner), func(c *scope) bool { return !hasOwn[c] })
}

// readHTTPScope reads the scopes of an http block.
func (n *reader) readHTTPScope(block []*nginxconf.Directive) (http *scope) {
	unlimited := limitSet{status: 503} // as nginx answers by default
	http = &scope{what: "http block"}
	http.limits = map[string]limitSet{limitReq: unlimited, limitConn: unlimited}
	n.readLimits(http, block)
	servers := n.readServers(http, nginxconf.Named(block, "server"))
	n.variables.NoteOfServerName = noteOfServerName(servers)
	if len(http.inner) == 0 { // a part of a server
		n.readLocations(http, block)
	}
	return http
}

// readLimits sets the limits of a scope that has those of the scope around it. Limits of a scope
// replace those around it, and so does each setting.
func (n *reader) readLimits(s *scope, block []*nginxconf.Directive) {
	for _, kind := range []string{limitReq, limitConn} {
		l := s.limits[kind]
		if own := nginxconf.Named(block, kind); len(own) > 0 {
			l.list = own
		}
		for _, d := range nginxconf.Named(block, kind+"_status") {
			status, err := strconv.ParseUint(d.Arg(0), 10, 32)
			if err != nil || status < 400 || status > 599 {
				n.Fail(placeOf(d), "must be a status from 400 to 599")
			}
			l.status = status
		}
		for _, d := range nginxconf.Named(block, kind+"_dry_run") {
			l.dryRun = d.Arg(0) == "on"
		}
		if answersItself(block) {
			l.list = nil
		}
		s.limits[kind] = l
	}
}

// answersItself reports whether nginx answers all requests of a block before it looks at limits.
func answersItself(block []*nginxconf.Directive) bool {
	return len(nginxconf.Named(block, "return"))+len(nginxconf.Named(block, "internal")) > 0
}

// newScope makes a scope within another one, with the limits of a block.
func (n *reader) newScope(outer *scope, what string, block []*nginxconf.Directive) *scope {
	c := &scope{what: what, limits: map[string]limitSet{}}
	for kind, l := range outer.limits {
		c.limits[kind] = l
	}
	n.readLimits(c, block)
	return c
}

// maxBeside bounds the servers, and the locations of one block: each is compared with each other.
const maxBeside = 1000

func (n *reader) areTooMany(blocks []*nginxconf.Directive) bool {
	if len(blocks) <= maxBeside {
		return false
	}
	n.Fail(placeOf(blocks[maxBeside]), "there are more than 1000 of them beside each other: give those with limits")
	return true
}
