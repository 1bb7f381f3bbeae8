package ingress

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// allOthers stands for all hosts that no Ingress names, as an Ingress without a host does.
const allOthers = ""

// hostPath is one path of one host, which may be allOthers.
type hostPath struct {
	host string
	path writtenPath
}

// writtenPath is a path as an Ingress has it.
type writtenPath struct {
	request.Pattern
	length int // of its text there: nginx tries the longest first
}

var anyPath = writtenPath{request.AnyPath, len("/")}

// hostsWithExpressions are the hosts whose paths are all expressions: ingress-nginx makes them so if one
// Ingress of the host has use-regex or a rewrite-target.
func hostsWithExpressions(ingresses []source.Resource) map[string]bool {
	hosts := map[string]bool{}
	for _, r := range ingresses {
		if annotationOf(r, "use-regex") == "true" || annotationOf(r, "rewrite-target") != "" {
			for _, ofHost := range source.ItemsOf(r.Node, "spec", "rules") {
				hosts[strings.ToLower(source.TextOf(ofHost, "host"))] = true
			}
		}
	}
	return hosts
}

// pathsOf reads the hosts and paths of an Ingress. The default backend of one without rules has all hosts that no
// Ingress names. Beside rules it serves what is left of their hosts.
func (imp *ingressImport) pathsOf(r source.Resource, regexHosts map[string]bool) (list []hostPath) {
	rules := source.ItemsOf(r.Node, "spec", "rules")
	if len(rules) == 0 {
		list = append(list, hostPath{allOthers, anyPath})
	}
	for i, ofHost := range rules {
		host := strings.ToLower(source.TextOf(ofHost, "host"))
		if _, isName := request.HostPattern(host); host != allOthers && !isName {
			imp.Fail(r.At.Item("spec.rules", i).In("host"), "the host "+strconv.Quote(host)+
				" must be a name, such as a.example or *.a.example")
		}
		paths := source.ItemsOf(ofHost, "http", "paths")
		if len(paths) == 0 {
			list = append(list, hostPath{host, anyPath})
		}
		for k, p := range paths {
			text := cmp.Or(source.TextOf(p, "path"), "/")
			pattern, ok := pathPattern(text, source.TextOf(p, "path_type"), regexHosts[host])
			if !ok {
				at := r.At.Item("spec.rules", i).Item("http.paths", k)
				imp.Fail(at, "the path "+strconv.Quote(text)+" must begin with /, and be an expression of RE2 where "+
					"use-regex or rewrite-target makes it one")
			}
			list = append(list, hostPath{host, writtenPath{pattern, len(text)}})
		}
	}
	return list
}

// noteWildcards notes that a policy takes more hosts for those of *.a.example.
func (imp *ingressImport) noteWildcards() {
	for _, ing := range imp.all {
		for _, p := range ing.paths {
			if below, isWildcard := strings.CutPrefix(p.host, "*."); isWildcard && !ing.isCanary {
				imp.NoteImport("The * of " + p.host + " is one label to ingress-nginx, as in x." + below +
					". Here it is one or more, as in x.y." + below)
				return
			}
		}
	}
}

// pathPattern is the pattern of a path, as updateServerLocations and buildLocation of ingress-nginx make locations of
// it. Every type but Exact is Prefix there.
func pathPattern(path, pathType string, isExpression bool) (p request.Pattern, ok bool) {
	switch {
	case !strings.HasPrefix(path, "/"):
		return p, false
	case isExpression:
		return request.Searched("^"+path, true)
	case pathType == "Exact":
		p = request.Exact(path)
	case strings.HasSuffix(path, "/"):
		p = request.Prefix(path, false)
	default:
		p = request.OrBelow(path, false)
	}
	return p, true
}

// noteUnlistedPaths notes that paths of a host have no limit here if no Ingress has them. In ingress-nginx a default
// backend answers them, by what the oldest Ingress of the host says. The files need not say which one that is.
func (imp *ingressImport) noteUnlistedPaths() {
	hasUnlisted := func(p hostPath) bool { return p.path.Matches("/ a path/that nobody lists") }
	hosts := map[string]bool{allOthers: true} // of which an Ingress has all paths; allOthers is of no Ingress with rules
	for _, ing := range imp.all {
		for _, p := range ing.paths {
			if !ing.isCanary && !hosts[p.host] {
				hosts[p.host] = hasUnlisted(p)
			}
		}
	}
	for _, ing := range imp.all {
		for _, p := range ing.paths {
			isCounted := func(wider hostPath) bool { return hasUnlisted(wider) && imp.countsByWider(ing, p, wider) }
			if ing.isLimited() && !hosts[p.host] && !slices.ContainsFunc(ing.paths, isCounted) {
				imp.NoteImport("ingress-nginx also counts requests to paths that no Ingress has, by the limits of the oldest " +
					"Ingress of their host. Here they have no limit")
				return
			}
		}
	}
}

// countsByWider reports whether a wider host of the Ingress counts what is left of the host of a path: see
// exemptOtherGroup. It does not if another Ingress takes some of that from the wider host.
func (imp *ingressImport) countsByWider(ing *ingress, p, wider hostPath) bool {
	if !p.isBelowHost(wider.host) {
		return false
	}
	ofWider := &hostGroup{[]string{wider.host}, []writtenPath{wider.path}}
	takes := func(of hostPath) bool {
		return (p.host == of.host || p.isBelowHost(of.host)) && ofWider.relationTo(of) != apart
	}
	for _, other := range imp.all {
		if other != ing && !other.isCanary && slices.ContainsFunc(other.paths, takes) {
			return false
		}
	}
	return true
}

// hostGroup are hosts of one Ingress that have the same paths. allOthers is in a group of its own.
type hostGroup struct {
	hosts []string
	paths []writtenPath
}

// groupHosts groups the hosts of an Ingress by their paths.
func groupHosts(list []hostPath) (groups []*hostGroup) {
	var hosts []string
	paths := map[string][]writtenPath{}
	for _, p := range list {
		if paths[p.host] == nil {
			hosts = append(hosts, p.host)
		}
		if !slices.Contains(paths[p.host], p.path) {
			paths[p.host] = append(paths[p.host], p.path)
		}
	}
	for _, h := range hosts {
		isLike := func(g *hostGroup) bool {
			return (h == allOthers) == g.isUnnamed() && slices.Equal(paths[h], g.paths)
		}
		if i := slices.IndexFunc(groups, isLike); i >= 0 {
			groups[i].hosts = append(groups[i].hosts, h)
		} else {
			groups = append(groups, &hostGroup{[]string{h}, paths[h]})
		}
	}
	return groups
}

// isUnnamed reports whether the group is that of allOthers.
func (g *hostGroup) isUnnamed() bool { return g.hosts[0] == allOthers }

// selection is for the requests of the group, without those that ingress-nginx gives to a longer
// path or a narrower host of another Ingress, or that another group counts. An example:
//
//	Ingress    its hosts and path        its requests
//	shop       a.example, b.example /    those of both, but not of a.example with the path /api or one below it
//	api        a.example /api            those of a.example with the path /api or one below it
//	all        *.example /               those of *.example, but not of a.example and b.example
//	a canary   a.example /new            takes none of those above
func (g *hostGroup) selection(ing *ingress, all []*ingress) (s request.Selection) {
	s = requestsTo(g.hosts, g.paths...)
	for _, p := range ing.paths {
		g.exemptOtherGroup(&s, p)
	}
	for _, other := range all {
		if other != ing && !other.isCanary {
			for _, p := range other.paths {
				g.exemptOtherIngress(&s, p)
			}
		}
	}
	return s
}

// relation is that of a path to a group: whether nginx gives it requests of the group.
type relation uint8

const (
	apart        relation = iota // none
	equalPath                    // perhaps some: it is as long as one of the group, for the same host
	longerPath                   // those with the path: it is longer than one of the group, for the same host
	narrowerHost                 // those to the host: it is within one of the group
)

// relationTo is the relation of a path to the group.
func (g *hostGroup) relationTo(p hostPath) relation {
	switch {
	case slices.Contains(g.hosts, p.host) && slices.ContainsFunc(g.paths, p.path.tiesWith):
		return equalPath
	case slices.Contains(g.hosts, p.host) && slices.ContainsFunc(g.paths, p.path.winsOver):
		return longerPath
	case !slices.Contains(g.hosts, p.host) && slices.ContainsFunc(g.hosts, p.isBelowHost):
		return narrowerHost
	}
	return apart
}

// exemptOtherGroup exempts the requests of the group that another group of the same Ingress counts too, as that has a
// narrower host. Both have one counter, and a request counts once. An example is an Ingress of *.example / and
// a.example /api:
//
//	/api of a.example       counts by the group of a.example alone
//	the rest of a.example   counts by that of *.example: ingress-nginx gives the host the limits of the Ingress too
func (g *hostGroup) exemptOtherGroup(s *request.Selection, beside hostPath) {
	meets := func(path writtenPath) bool { return !beside.path.Apart(path.Pattern) }
	if g.relationTo(beside) != narrowerHost || !slices.ContainsFunc(g.paths, meets) {
		return
	}
	counted := requestsTo([]string{beside.host}, beside.path)
	g.exemptToHost(s, counted, beside.host, "another rule of the Ingress has")
}

// exemptOtherIngress exempts the requests of the group that a path of another Ingress takes:
//
//	its relation                            the exemption
//	longerPath, in a group of one host      the path
//	longerPath, in one of several hosts     the host and the path
//	narrowerHost                            the host
//	equalPath                               none, and the rule is off: nginx gives the path to the older Ingress
//
// Where the group wins some of these back by a path that is longer still, no match says what is left. An example is a
// group of / and /api/v1 beside another Ingress of /api.
func (g *hostGroup) exemptOtherIngress(s *request.Selection, other hostPath) {
	const by = "another Ingress takes"
	winsBack := func(path writtenPath) bool { return path.winsOver(other.path) }
	switch g.relationTo(other) {
	case apart:
	case equalPath:
		s.TurnOff(request.NoMatch("another Ingress has a path as long, " + other.path.Text() + ", and ingress-nginx gives " +
			"each request to one of the two"))
	case narrowerHost:
		g.exemptToHost(s, requestsTo([]string{other.host}, anyPath), other.host, by)
	case longerPath:
		switch {
		case slices.ContainsFunc(g.paths, winsBack):
			s.TurnOff(request.NoMatch(by + " some of those to " + other.path.Text()))
		case len(g.hosts) == 1:
			exemptOnce(s, requestsTo(nil, other.path))
		default:
			g.exemptToHost(s, requestsTo([]string{other.host}, other.path), other.host, by)
		}
	}
}

// exemptToHost exempts requests to a host. Where the group has a narrower host, an exemption would have the requests to
// that too, so no match says what is left.
func (g *hostGroup) exemptToHost(s *request.Selection, taken request.Selection, host, by string) {
	if g.hasHostBelow(host) {
		s.TurnOff(request.NoMatch(by + " some of those to " + host))
		return
	}
	exemptOnce(s, taken)
}

// exemptOnce exempts requests, which several paths may take. If no match has them, the rule is off.
func exemptOnce(s *request.Selection, taken request.Selection) {
	switch {
	case taken.IsOff():
		s.AddAll(taken.Remarks)
	case !s.HasExempt(taken.Match()):
		s.ExemptMatches(taken.Match())
	}
}

// hasHostBelow reports whether a match for the host has requests to a narrower one of the group.
func (g *hostGroup) hasHostBelow(host string) bool {
	return slices.ContainsFunc(g.hosts, func(name string) bool { return request.IsHostBelow(name, host) })
}

// requestsTo are the requests to any of some hosts with any of some paths. No hosts, allOthers and anyPath are no
// condition.
func requestsTo(hosts []string, paths ...writtenPath) (s request.Selection) {
	if !slices.Contains(hosts, allOthers) { // each is a name, else the import fails: see pathsOf
		s = request.ToHosts(hosts, func(i int) string { return "the host is " + hosts[i] })
	}
	if !slices.Contains(paths, anyPath) {
		s.Require(request.FullPath.Value(), spelledOut(paths)...)
	}
	return s
}

// isBelowHost reports whether the host is one of another, wider one.
func (p hostPath) isBelowHost(wider string) bool {
	return p.host != allOthers && (wider == allOthers || request.IsHostBelow(p.host, wider))
}

// winsOver reports whether nginx takes the path before another one that fits some of the same requests.
func (p writtenPath) winsOver(other writtenPath) bool {
	return p.isLongerThan(other) && !other.Apart(p.Pattern)
}

// tiesWith reports whether nginx may take either of the path and another one for some requests.
func (p writtenPath) tiesWith(other writtenPath) bool {
	return !p.isLongerThan(other) && !other.isLongerThan(p) && !other.Apart(p.Pattern)
}

// isLongerThan reports whether nginx takes the location of a path before that of another one: the longer one, or the
// exact one of two with one text. ingress-nginx sorts locations with expressions by the length of their texts too.
func (p writtenPath) isLongerThan(other writtenPath) bool {
	isSame := p.length == other.length
	return p.length > other.length || isSame && p.Kind() == request.Exactly && other.Kind() != request.Exactly
}

// spelledOut has two patterns for a path and what is below it: a list needs no expression for that.
func spelledOut(paths []writtenPath) (list []request.Pattern) {
	for _, p := range paths {
		if p.Kind() == request.PathOrBelow {
			list = append(list, request.Exact(p.Text()), request.Prefix(p.Text()+"/", false))
		} else {
			list = append(list, p.Pattern)
		}
	}
	return list
}
