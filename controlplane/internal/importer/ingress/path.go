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

// String is the host with the path, such as a.example with the path /api.
func (p hostPath) String() string {
	switch {
	case p.path == anyPath:
		return p.host
	case p.host == allOthers:
		return "all other hosts with the path " + p.path.Text()
	}
	return p.host + " with the path " + p.path.Text()
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
	areListed := map[string]bool{allOthers: true} // all paths of a host; the rest of allOthers has no limit there either
	for _, ing := range imp.all {
		for _, p := range ing.paths {
			areListed[p.host] = areListed[p.host] || p.path.isOfAll()
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

// selection is for the requests of the group, without those that nginx or another rule counts elsewhere. An example:
//
//	Ingress    its hosts and path        its requests
//	shop       a.example, b.example /    those of both, but not of a.example with the path /api or one below it
//	api        a.example /api            those of a.example with the path /api or one below it
//	all        *.example /               those of *.example, but not of a.example and b.example
func (g *hostGroup) selection(ing *ingress, all []*ingress) request.Selection {
	var leftOut []request.Selection
	for _, of := range all {
		takes := g.takenByOther
		if of == ing {
			takes = g.takenByOwn
		}
		for _, p := range of.paths {
			if taken, takesSome := takes(p); takesSome {
				leftOut = append(leftOut, taken)
			}
		}
	}
	s := requestsTo(g.hosts, g.paths...)
	s.ExemptSelected(leftOut, func(_ int, why request.WhyOff) request.WhyOff { return why })
	return s
}

// takenByOwn is what a path of its Ingress takes from the group: if its host is below one of the group, the host with
// the path, which another rule counts in the same counter.
func (g *hostGroup) takenByOwn(p hostPath) (taken request.Selection, takesSome bool) {
	if slices.Contains(g.hosts, p.host) || !g.hasWider(p.host) {
		return taken, false
	}
	return g.without(p, "another rule of the Ingress has"), true
}

// takenByOther is what a path of another Ingress takes from the group:
//
//	its host     its path              it takes
//	one of them  as long as one        no match says which requests: those that nginx gives to the older Ingress
//	one of them  wins over one         the host with the path
//	below one    any                   the host
//	any          any                   nothing
func (g *hostGroup) takenByOther(p hostPath) (taken request.Selection, takesSome bool) {
	hasHost := slices.Contains(g.hosts, p.host)
	switch {
	case hasHost && slices.ContainsFunc(g.paths, p.path.tiesWith):
		taken.TurnOff(request.NoMatch("another Ingress has a path as long, " + p.path.Text() + ", and ingress-nginx " +
			"gives each request to one of the two"))
		return taken, true
	case hasHost && slices.ContainsFunc(g.paths, p.path.winsOver):
		return g.without(p, "another Ingress takes"), true
	case !hasHost && g.hasWider(p.host):
		return g.without(hostPath{p.host, anyPath}, "another Ingress takes"), true
	}
	return taken, false
}

// hasWider reports whether a host is one of a wider one of the group.
func (g *hostGroup) hasWider(host string) bool {
	return slices.ContainsFunc(g.hosts, func(own string) bool { return isNarrower(host, own) })
}

// without are the requests to a host and path that the group is without, as another one has them.
func (g *hostGroup) without(p hostPath, anotherHas string) (leftOut request.Selection) {
	switch {
	case g.keepsSomeOf(p):
		leftOut.TurnOff(request.NoMatch(anotherHas + " some of those to " + p.String()))
		return leftOut
	case slices.Equal(g.hosts, []string{p.host}): // the rule's match has the host
		return requestsTo([]string{allOthers}, p.path)
	}
	return requestsTo([]string{p.host}, p.path)
}

// keepsSomeOf reports whether the group has some requests of what is taken from it: those to a host below, or to a path
// that wins in turn. So /api/v1 does, in a group of / and /api/v1 from which /api is taken.
func (g *hostGroup) keepsSomeOf(taken hostPath) bool {
	isBelow := func(own string) bool { return isNarrower(own, taken.host) }
	wins := func(own writtenPath) bool { return own.winsOver(taken.path) }
	hasHost := slices.Contains(g.hosts, taken.host)
	return slices.ContainsFunc(g.hosts, isBelow) || hasHost && slices.ContainsFunc(g.paths, wins)
}

// isNarrower reports whether a host is one of a wider one, which may be allOthers.
func isNarrower(host, wider string) bool {
	return host != allOthers && (wider == allOthers || request.IsHostBelow(host, wider))
}

// requestsTo are the requests to any of some hosts with any of some paths. The host allOthers and anyPath are no
// condition.
func requestsTo(hosts []string, paths ...writtenPath) (s request.Selection) {
	if !slices.Contains(hosts, allOthers) { // each is a name, else the import fails: see pathsOf
		s = request.ToHosts(hosts)
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

// isOfAll reports whether all paths of a host fit. An expression has no list of those that do, so this is whether one
// fits that nobody writes.
func (p writtenPath) isOfAll() bool { return p.Matches("/ a path/that nobody writes") }

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
