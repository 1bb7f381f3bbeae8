package nginx

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// plan is what rules are made of: the limits of a module that hold in a scope, and the requests that they are for.
type plan struct {
	module
	limits   limitSet
	requests request.Selection
}

// plans are what rules are made of in a scope and in those within it, for one module. The requests are those that nginx
// gives to one of these scopes. Each of them is in one plan:
//
//  1. The scope's own plan is for the rest: the requests that fit no inner scope with rules of its own.
//  2. Such an inner scope has plans in the same way: for the requests that fit it, and no winner.
//
// An example is a server with the limits S:
//
//	scope           its limits  winners  has its own rules   they are for         such as
//	location /a     A           ~ x$     as A is not S       /a* without ~.*x     /a1
//	location ~ x$   S                    as it wins over /a  ~.*x                 /ax, /bx
//	location /b     S           ~ x$     no
//	the server      S                    for the rest        all but /a*, ~.*x    /b1, /c1
func (s *scope) plans(m module, requests request.Selection) (list []plan) {
	inner := s.withOwnRules(m)
	var scopes []*scope
	for _, c := range inner {
		scopes = append(scopes, c.scope)
	}
	if rest, hasSome := without(requests, scopes); hasSome {
		list = append(list, plan{m, s.limits[m], rest})
	}
	for _, c := range inner {
		fitting := requests
		fitting.NarrowTo(c.selection)
		if won, hasSome := without(fitting, c.winners); hasSome {
			list = append(list, c.plans(m, won)...)
		}
	}
	return list
}

// withOwnRules are the inner scopes that need rules of their own, each with those of its winners that do, too:
//
//   - Scopes with other limits need rules, as /a does.
//   - A scope that wins over /a needs rules, whatever its limits are, as ~ x$ does. Else no rule would limit /ax: the
//     rules of the server leave out all of /a, and the rules of /a leave out ~ x$.
//   - Others need none, as /b: their requests stay with rules that have the same limits.
func (s *scope) withOwnRules(m module) (list []innerScope) {
	needsOwn := map[*scope]bool{}
	for _, c := range s.inner {
		if !c.hasOnly(m, s.limits[m]) {
			needsOwn[c.scope] = true
			for _, winner := range c.winners {
				needsOwn[winner] = true
			}
		}
	}
	needsNone := func(c *scope) bool { return !needsOwn[c] }
	for _, c := range s.inner {
		if needsOwn[c.scope] {
			list = append(list, innerScope{c.scope, slices.DeleteFunc(slices.Clone(c.winners), needsNone)})
		}
	}
	return list
}

// hasOnly reports whether these limits of a module are those of the scope and of all scopes within it.
func (s *scope) hasOnly(m module, limits limitSet) bool {
	differs := func(c innerScope) bool { return !c.hasOnly(m, limits) }
	return s.limits[m].same(limits) && !slices.ContainsFunc(s.inner, differs)
}

// without are the requests that fit none of some scopes: in the example those of the server without /a and ~ x$, and
// those of /a without ~ x$. There are none if one of the scopes has all requests of the scope around it, as a location
// / has.
func without(requests request.Selection, scopes []*scope) (rest request.Selection, hasSome bool) {
	selections := make([]request.Selection, len(scopes))
	for i, s := range scopes {
		selections[i] = s.selection
	}
	if slices.ContainsFunc(selections, request.Selection.IsEverything) {
		return rest, false
	}
	requests.ExemptSelected(selections, func(i int, why request.WhyOff) request.WhyOff {
		return request.WhyOff("It should leave out the requests of the "+scopes[i].label+". ") + why
	})
	return requests, true
}
