package envoy

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// This file leaves out requests that Envoy gives to others:
//
//	                      from                          those of                     what no exemption says
//	exemptOthers          a virtual host                other virtual hosts          turns the rule off
//	exemptEarlierRoutes   a route                       the routes before it         turns the rule off
//	exemptAtLeast         a filter's configuration      the routes it is not for     exempts more, with a comment
//
// The configuration of a filter is for many routes. One route would turn all its rules off, so it limits fewer requests
// instead.

// exemptOthers exempts the hosts for which Envoy finds another virtual host, as it takes the longest domain that fits.
// It returns the narrower ones, for which Envoy looks first. Examples:
//
//	domains                  of the others       the rules of the host
//	*                        a.example, b.test   exempt: [{hosts: [a.example, b.test]}]
//	*.example                a.example, b.test   exempt: [{hosts: [a.example]}]: b.test is not below *.example
//	a.example                *.example           exempt nothing: the other domain is the wider one
//	*.example, b.a.example   *.a.example         are off: an exempt of *.a.example would have b.a.example too
//	a.example:80             a.example:8080      are off: a policy has the host without its port
//	*                        a.*                 are off: a policy has no hosts such as a.*
func (h *virtualHost) exemptOthers(others []*virtualHost) (narrower []*virtualHost) {
	s := &h.selection
	var taken []request.Pattern
	for _, other := range others {
		for i, name := range other.names {
			domain := other.domains[i]
			isWider := func(d string) bool { return request.IsHostBelow(name, d) }
			isNarrower := func(d string) bool { return request.IsHostBelow(d, name) }
			isSame := func(d string) bool { return strings.EqualFold(d, name) }
			switch {
			case slices.ContainsFunc(h.names, isSame):
				s.TurnOff(request.WhyOff("Hosts are compared without their port here, so its requests cannot be told from " +
					"those to " + domain + "."))
			case !slices.ContainsFunc(h.names, isWider):
			case slices.ContainsFunc(h.names, isNarrower): // an exempt would have these too
				s.TurnOff(request.NoMatch("another virtual host takes some of those to " + domain))
			default:
				narrower = append(narrower, other)
				if hosts, ok := request.HostPattern(name); ok {
					taken = append(taken, hosts)
				} else {
					s.TurnOff(request.NoMatch("another virtual host takes those to " + domain))
				}
			}
		}
	}
	if taken != nil {
		s.ExemptFitting(request.Host.Value(), taken...)
	}
	return narrower
}

// exemptEarlierRoutes exempts the requests that the matches of earlier routes take.
func exemptEarlierRoutes(matched *request.Selection, before []request.Selection) {
	reason := request.NoMatch("an earlier route takes some of them")
	exempted := matched.ExemptSelected(before, func(int, request.WhyOff) request.WhyOff { return reason })
	hasComment := func(o request.Selection) bool { return len(o.Comments()) > 0 }
	if slices.ContainsFunc(exempted, hasComment) {
		matched.Comment(exemptsMore)
	}
}

// requestsOfFilter are all requests but those of routes for which the filter does not work by this configuration, its
// own. An example:
//
//	/a, with a configuration for it    Exempt has it
//	/c, with nothing for it            is left: the configuration is for this route
//	/, which switches the filter off   WhyOff says why: an exempt of / would have /c
func (c *localConfig) requestsOfFilter(hosts []*virtualHost) (all request.Selection) {
	isOwn := map[*hostRoute]bool{}
	for _, route := range c.routes {
		isOwn[route] = true
	}
	isOther := func(route *hostRoute) bool { return !isOwn[route] }
	for _, h := range hosts {
		// Its own routes that Envoy looks for before the next one of the host.
		before := slices.DeleteFunc(routesOf(h.narrower), isOther)
		for _, route := range h.routes {
			if isOwn[route] {
				before = append(before, route)
			} else {
				exemptAtLeast(&all, route, before)
			}
		}
	}
	return all
}

// exemptAtLeast exempts from a rule's requests all that another route matches. The route may have fewer of them, as it
// leaves some to the rule's routes before it. Then the rule limits fewer requests than Envoy does, and a comment says
// why. If it would exempt all requests, the rule is off.
func exemptAtLeast(requests *request.Selection, other *hostRoute, before []*hostRoute) {
	match, ok := other.selection.Match()
	if len(match) == 0 {
		requests.TurnOff(request.NoMatch("they are those of routes without a configuration of their own"))
		return
	}
	if !ok {
		requests.Comment("It leaves out more requests than there, because an exempt cannot say the condition of a route.")
	}
	takesSome := func(route *hostRoute) bool { return !route.selection.IsApart(other.selection) }
	if slices.ContainsFunc(before, takesSome) {
		requests.Comment("It leaves out more requests than there, because another route takes some of the exempt ones.")
	}
	if len(other.selection.Comments()) > 0 {
		requests.Comment(exemptsMore)
	}
	requests.ExemptMatches(match)
}

// exemptsMore is said of a selection that exempts requests of a route whose own selection has a comment. There may be
// many such routes, so it has one comment for all.
const exemptsMore = "It may leave out more requests than there, because a policy compares less of what another route " +
	"matches."
