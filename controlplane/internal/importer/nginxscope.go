package importer

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// nginxScope is what nginx inherits limits by: http, a server or a location. Its selection is for its
// requests among those of the scope around it.
type nginxScope struct {
	selection
	limits map[string]nginxLimits // by kind
	inner  []*nginxScope
	wins   []*nginxScope // scopes beside it that win: nginx gives them the requests that fit both
	what   string        // for messages
}

// nginxLimits are the limits of a kind that hold in a scope, with their settings.
type nginxLimits struct {
	list   []*nginxconf.Directive
	status uint64
	dryRun bool
}

func (l nginxLimits) same(other nginxLimits) bool {
	settings := l.status == other.status && l.dryRun == other.dryRun
	return slices.Equal(l.list, other.list) && (settings || len(l.list) == 0)
}

// isWhole reports whether all requests of the scope around it are in the scope, or in one that wins.
func (s *nginxScope) isWhole() bool { return len(s.match)+len(s.whyOff) == 0 }

// isUniform reports whether the limits of a kind are the same in all scopes within it.
func (s *nginxScope) isUniform(kind string, limits nginxLimits) bool {
	differs := func(c *nginxScope) bool { return !c.isUniform(kind, limits) }
	return s.limits[kind].same(limits) && !slices.ContainsFunc(s.inner, differs)
}

// withOwnRules are the inner scopes that need rules of their own: those with other limits, and those that
// win over one of these.
func (s *nginxScope) withOwnRules(kind string) []*nginxScope {
	hasOwn := map[*nginxScope]bool{}
	var add func(c *nginxScope)
	add = func(c *nginxScope) {
		if !hasOwn[c] {
			hasOwn[c] = true
			for _, winner := range c.wins {
				add(winner)
			}
		}
	}
	for _, c := range s.inner {
		if !c.isUniform(kind, s.limits[kind]) {
			add(c)
		}
	}
	return slices.DeleteFunc(slices.Clone(s.inner), func(c *nginxScope) bool { return !hasOwn[c] })
}

// exemptScope exempts the requests of another scope from the selection.
func (s *selection) exemptScope(c *nginxScope) {
	switch {
	case len(c.whyOff) > 0:
		s.cannot("It should leave out the requests of the " + c.what + ". " + c.whyOff[0])
	case len(c.match) > 0:
		s.exempt = append(s.exempt, c.match)
	}
}

// loseTo leaves requests that fit another scope too to that one.
func (s *nginxScope) loseTo(winner *nginxScope) {
	s.wins = append(s.wins, winner)
	s.exemptScope(winner)
}

// meet is for the requests of both selections. It has none if the selections want values of a part
// that are apart.
func (s selection) meet(other selection) (both selection, hasAny bool) {
	for id, values := range other.match {
		common, ok := commonValues(id.kind, s.match[id], values)
		if !ok {
			continue // and says that no match can select them
		}
		if len(common) == 0 {
			return selection{}, false
		}
		s.match = maps.Clone(s.match)
		if s.match == nil {
			s.match = match{}
		}
		s.match[id] = common
		other.match = other.match.without(match{id: values})
	}
	return s.and(other), true
}

// commonValues are the patterns for the values of a kind of part that fit one of each list; an empty list
// fits all. It is not ok if no list of patterns says that.
func commonValues(kind partKind, a, b []pattern) (common []pattern, ok bool) {
	if len(a) == 0 {
		return b, true
	}
	for _, p := range a {
		for _, q := range b {
			switch {
			case isValueWithin(kind, p, q):
				common = appendNew(common, []pattern{p})
			case isValueWithin(kind, q, p):
				common = appendNew(common, []pattern{q})
			case kind != kindHost && kind != kindClientIP && !p.apart(q):
				return nil, false
			}
		}
	}
	return common, true
}

// isValueWithin reports whether every value of a kind of part that fits p fits q. Hosts and addresses are
// compared as a match does: the text of a pattern may be *.a.example or a network.
func isValueWithin(kind partKind, p, q pattern) bool {
	switch kind {
	case kindHost:
		end, isWildcard := strings.CutPrefix(q.text, "*")
		return p == q || isWildcard && strings.HasSuffix(strings.TrimPrefix(p.text, "*"), end)
	case kindClientIP:
		narrow, _ := networkOf(p.text)
		wide, _ := networkOf(q.text)
		return wide.Bits() <= narrow.Bits() && wide.Overlaps(narrow)
	default:
		return p.within(q)
	}
}

// httpScope reads the scopes of an http block.
func (n *nginxImport) httpScope(block []*nginxconf.Directive) *nginxScope {
	unlimited := nginxLimits{status: 503} // as nginx answers by default
	http := &nginxScope{what: "http block"}
	http.limits = map[string]nginxLimits{limitReq: unlimited, limitConn: unlimited}
	n.readLimits(http, block)
	n.readServers(http, nginxconf.Named(block, "server"))
	if len(http.inner) == 0 { // a part of a server
		n.readLocations(http, block, false)
	}
	return http
}

// readLimits sets the limits of a scope that has those of the scope around it. Limits of a scope
// replace those around it, and so does each setting.
func (n *nginxImport) readLimits(s *nginxScope, block []*nginxconf.Directive) {
	for _, kind := range []string{limitReq, limitConn} {
		l := s.limits[kind]
		if own := nginxconf.Named(block, kind); len(own) > 0 {
			l.list = own
		}
		for _, d := range nginxconf.Named(block, kind+"_status") {
			status, err := strconv.ParseUint(d.Arg(0), 10, 32)
			if err != nil || status < 400 || status > 599 {
				n.fail(placeOf(d), "must be a status from 400 to 599")
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

// within is a scope in this one, with the limits of a block.
func (n *nginxImport) within(s *nginxScope, what string, block []*nginxconf.Directive) *nginxScope {
	c := &nginxScope{what: what, limits: map[string]nginxLimits{}}
	for kind, l := range s.limits {
		c.limits[kind] = l
	}
	n.readLimits(c, block)
	return c
}

// maxBeside bounds the servers, and the locations of one block: each is compared with each other.
const maxBeside = 1000

func (n *nginxImport) areTooMany(blocks []*nginxconf.Directive) bool {
	if len(blocks) <= maxBeside {
		return false
	}
	n.fail(placeOf(blocks[maxBeside]), "there are more than 1000 of them beside each other: give those with limits")
	return true
}
