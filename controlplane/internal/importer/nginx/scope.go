package nginx

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// scope is what nginx inherits limits by: http, a server or a location. nginx finds one scope for a request, and only
// the limits of that one hold.
type scope struct {
	what    string              // for messages
	limits  map[string]limitSet // by kind: its own and those that it inherits
	fits    request.Selection   // what fits its condition, in the scope around it: a match, or why none says it
	winners []*scope            // those beside it that nginx prefers for the requests that fit both: leaveTo, winsOver
	inner   []*scope            // those in it, to which nginx gives the requests that fit them
}

// addRules makes the rules for the limits of a kind in a scope and in those within it. Outer is for the requests of the
// scope around it. A request may fit several scopes, and the rules of one of them limit it: those of the others leave
// it out. So of all requests that nginx gives to the scope, or to one within it, its rules are for the rest, which no
// inner scope with rules of its own has. An example is a server a.example with the limits S:
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
func (n *reader) addRules(kind string, s *scope, outer request.Selection) {
	all := outer.And(without(s.fits, s.winners))
	inner := s.withOwnRules(kind)
	if !slices.ContainsFunc(inner, (*scope).isWhole) { // else no request is left
		rest := without(all, inner)
		for _, d := range s.limits[kind].list {
			n.addLimit(kind, d, s.limits[kind], rest)
		}
	}
	for _, c := range inner {
		n.addRules(kind, c, all)
	}
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

// isUniform reports whether these limits of a kind are those of the scope and of all scopes within it.
func (s *scope) isUniform(kind string, limits limitSet) bool {
	differs := func(c *scope) bool { return !c.isUniform(kind, limits) }
	return s.limits[kind].same(limits) && !slices.ContainsFunc(s.inner, differs)
}

// isWhole reports whether all requests of the scope around it fit, but those of winners, so that none is left for that
// one. A location / is so, and none of the example.
func (s *scope) isWhole() bool { return s.fits.IsEverything() }

// without is a selection without the requests that fit some scopes.
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
