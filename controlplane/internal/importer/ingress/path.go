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
			if below, isWildcard := strings.CutPrefix(p.host, "*."); isWildcard {
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

// noteUnlistedPaths notes that a host of a limited Ingress has paths of no Ingress. In ingress-nginx a default backend
// answers them, by what the oldest Ingress of the host says. The files need not say which one that is.
func (imp *ingressImport) noteUnlistedPaths() {
	const unlisted = "/ a path/that nobody lists" // only what has all paths of a host fits it
	areListed := map[string]bool{allOthers: true} // all paths of a host; the rest of allOthers has no limit there either
	for _, ing := range imp.all {
		for _, p := range ing.paths {
			areListed[p.host] = areListed[p.host] || p.path.Matches(unlisted)
		}
	}
	hasUnlisted := func(p hostPath) bool { return !areListed[p.host] }
	for _, ing := range imp.all {
		if ing.isLimited() && slices.ContainsFunc(ing.paths, hasUnlisted) {
			imp.NoteImport("ingress-nginx also counts requests to paths that no Ingress has, by the limits of the oldest " +
				"Ingress of their host. Here they have no limit, or that of a wider host")
			return
		}
	}
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

// selection is for the requests of the group, without those that other paths take. An example:
//
//	Ingress    its hosts and path        its requests
//	shop       a.example, b.example /    those of both, but not of a.example with the path /api or one below it
//	api        a.example /api            those of a.example with the path /api or one below it
//	all        *.example /               those of *.example, but not of a.example and b.example
func (g *hostGroup) selection(ing *ingress, all []*ingress) request.Selection {
	var taken []request.Selection
	for _, of := range all {
		leftOut := g.takenByAnother
		if of == ing {
			leftOut = g.countedWithNarrower
		}
		for _, p := range of.paths {
			if some, hasSome := leftOut(p); hasSome {
				taken = append(taken, some)
			}
		}
	}
	s := requestsTo(g.hosts, g.paths...)
	s.ExemptSelected(taken, func(_ int, why request.WhyOff) request.WhyOff { return why })
	return s
}

// countedWithNarrower are the requests to a path of the same Ingress, if the group has a wider host than the path's:
// they count by the rule of the narrower host, in the same counter.
func (g *hostGroup) countedWithNarrower(p hostPath) (counted request.Selection, hasSome bool) {
	if !g.hasWiderOnly(p.host) {
		return counted, false
	}
	counted = requestsTo([]string{p.host}, p.path)
	if g.hasNarrower(p.host) {
		counted.TurnOff(request.NoMatch("another rule of the Ingress has some of those to " + p.host))
	}
	return counted, true
}

// takenByAnother are the requests that a path of another Ingress takes from the group. The first row that fits says
// which. Its host and its path are compared with each of the group:
//
//	its host     its path  it takes
//	one of them  ties      some: nginx gives them to the older Ingress
//	one of them  wins      the host with the path
//	below one    any       the host
//	any          any       none
//
// No match says which some are. The next two rows are some as well if the group has what wins over the path in turn: a
// path, as a group of / and /api/v1 beside /api, or a host below the path's.
func (g *hostGroup) takenByAnother(p hostPath) (taken request.Selection, takesSome bool) {
	hasPath := func(is func(own writtenPath) bool) bool {
		return slices.Contains(g.hosts, p.host) && slices.ContainsFunc(g.paths, is)
	}
	takesHost, takesPath := g.hasWiderOnly(p.host), hasPath(p.path.winsOver)
	switch {
	case hasPath(p.path.tiesWith):
		taken.TurnOff(request.NoMatch("another Ingress has a path as long, " + p.path.Text() + ", and ingress-nginx gives " +
			"each request to one of the two"))
	case takesPath && hasPath(func(own writtenPath) bool { return own.winsOver(p.path) }):
		taken.TurnOff(request.NoMatch("another Ingress takes some of those to " + p.path.Text()))
	case (takesHost || takesPath) && g.hasNarrower(p.host):
		taken.TurnOff(request.NoMatch("another Ingress takes some of those to " + p.host))
	case takesPath && len(g.hosts) == 1: // the rule's match has the host
		taken = requestsTo([]string{allOthers}, p.path)
	case takesPath:
		taken = requestsTo([]string{p.host}, p.path)
	case takesHost:
		taken = requestsTo([]string{p.host}, anyPath)
	default:
		return taken, false
	}
	return taken, true
}

// hasWiderOnly reports whether the group has a wider host, and not the host itself.
func (g *hostGroup) hasWiderOnly(host string) bool {
	isWider := func(own string) bool { return isHostBelow(host, own) }
	return !slices.Contains(g.hosts, host) && slices.ContainsFunc(g.hosts, isWider)
}

// hasNarrower reports whether the group has a host below this one.
func (g *hostGroup) hasNarrower(host string) bool {
	return slices.ContainsFunc(g.hosts, func(own string) bool { return isHostBelow(own, host) })
}

// isHostBelow reports whether a host is one of a wider one.
func isHostBelow(host, wider string) bool {
	return host != allOthers && (wider == allOthers || request.IsHostBelow(host, wider))
}

// requestsTo are the requests to any of some hosts with any of some paths. The host allOthers and anyPath are no
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
