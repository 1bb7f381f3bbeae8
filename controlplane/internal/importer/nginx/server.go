package nginx

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// server is one server of nginx, as it is written.
type server struct {
	*scope
	names        []string
	ports        []string
	defaultPorts []string // ports for which it says that it is the default server
	answers      bool     // without a look at limits
	at           source.Place
}

// hostScope is the scope of some hosts. A scope has them by its names, or it has those that no server names.
type hostScope struct {
	*scope
	names  []string // no other hostScope has one of them
	isRest bool
}

// readServers adds the servers of an http block. nginx chooses one by the port, then by the host. A policy knows the
// host alone, so each host gets one server: a server comes to no hostScope, to one or to two, and each has a scope. An
// example: the default server has the name a.example and the limits D, another one has *.example and the limits W.
//
//	servers, as written    byHosts                     the scope is for   leaveTo
//	default: a.example D   isRest, a scope of D        all hosts          *.example and a.example
//	                       a.example, the same D       a.example          none: it is the narrower name
//	*.example W            *.example, the scope of W   *.example          a.example
func (n *reader) readServers(http *scope, blocks []*nginxconf.Directive) {
	if n.areTooMany(blocks) {
		return
	}
	var servers []*server
	for _, d := range blocks {
		s := readServer(d)
		s.scope = n.newScope("server "+strings.Join(s.names, " "), d.Block, http.passed)
		s.passed = s.limits // none if it answers by itself
		n.readLocations(s.scope, d.Block, false)
		servers = append(servers, s)
	}
	list := n.byHosts(servers)
	for _, s := range list {
		s.selectHosts()
		for _, other := range list {
			if other != s {
				s.leaveTo(other)
			}
		}
		http.inner = append(http.inner, s.scope)
	}
}

// readServer reads what a server says of its requests. The name .a.example stands for a.example and *.a.example.
func readServer(d *nginxconf.Directive) *server {
	s := &server{answers: answersItself(d.Block), at: source.PlaceOf(d)}
	for _, names := range nginxconf.Named(d.Block, "server_name") {
		for _, name := range names.Args {
			name = strings.ToLower(name)
			if bare, isBoth := strings.CutPrefix(name, "."); isBoth {
				s.names = append(s.names, bare, "*."+bare)
			} else if name != "" && name != "_" {
				s.names = append(s.names, name)
			}
		}
	}
	for _, l := range nginxconf.Named(d.Block, "listen") {
		s.ports = append(s.ports, portOf(l.Arg(0)))
		if slices.Contains(l.Args, "default_server") || slices.Contains(l.Args, "default") {
			s.defaultPorts = append(s.defaultPorts, portOf(l.Arg(0)))
		}
	}
	if len(s.ports) == 0 {
		s.ports = []string{"80"}
	}
	return s
}

// portOf is the port of what a server listens on, or the path of a Unix socket.
func portOf(address string) string {
	colon := strings.LastIndexByte(address, ':')
	switch {
	case strings.HasPrefix(address, "unix:"):
		return address
	case colon >= 0 && !strings.HasSuffix(address, "]"):
		return address[colon+1:]
	case request.HasOnly(address, "0123456789"):
		return address
	}
	return "80"
}

// byHosts are the scopes by their hosts, in the order of the servers. Those to which no request comes are left out.
func (n *reader) byHosts(servers []*server) (list []*hostScope) {
	rest := n.defaultServer(servers)
	names := n.claimedNames(servers)
	for _, s := range servers {
		if s == rest || len(names[s]) > 0 {
			list = append(list, &hostScope{s.scope, names[s], s == rest})
		}
	}
	return splitDefault(list)
}

// defaultServer is the server for hosts that no server names: the default server of the first port, or, if that
// answers by itself, of the first port whose default server does not.
func (n *reader) defaultServer(list []*server) (first *server) {
	byPort := map[string]*server{}
	var ports []string
	for _, s := range list {
		for _, port := range s.ports {
			if byPort[port] == nil {
				ports = append(ports, port)
			}
			if byPort[port] == nil || slices.Contains(s.defaultPorts, port) {
				byPort[port] = s
			}
		}
	}
	for _, port := range ports {
		if s := byPort[port]; first == nil || first.answers && !s.answers {
			first = s
		}
	}
	for _, port := range ports {
		if s := byPort[port]; s != first && !s.answers {
			n.Note(s.at, "nginx chooses the server by the port too, and a policy does not see it: for hosts that no "+
				"server names, the rules are those of another server")
		}
	}
	return first
}

// claimedNames are the names of each server that no other one has. The first in the file keeps a name, but servers that
// answer by themselves come last, because they have no limits.
func (n *reader) claimedNames(servers []*server) map[*server][]string {
	owner := map[string]*server{}
	names := map[*server][]string{}
	for _, answers := range []bool{false, true} {
		for _, s := range servers {
			if s.answers == answers {
				names[s] = n.claimNames(s, owner)
			}
		}
	}
	return names
}

// claimNames makes a server the owner of its names that have none, and returns those that it owns.
func (n *reader) claimNames(s *server, owner map[string]*server) (names []string) {
	for _, name := range s.names {
		if owner[name] == nil {
			owner[name] = s
		}
		switch {
		case owner[name] == s:
			names = append(names, name)
		case !s.answers:
			n.Note(s.at, "nginx chooses the server of "+name+" by the port too, and a policy does not see it: the "+
				"rules are those of the server before it")
		}
	}
	return names
}

// splitDefault makes two scopes of the default server if one of its names is a host of another server's *.example: no
// selection has both that name and all hosts but *.example. Both have the same limits and inner scopes, whose
// plans are for the hosts of either. In the example of readServers they are that of a.example and that of all but
// *.example.
func splitDefault(list []*hostScope) []*hostScope {
	i := slices.IndexFunc(list, func(s *hostScope) bool { return s.isRest })
	if i < 0 {
		return list
	}
	both := list[i]
	isWider := func(other *hostScope) bool { return other != both && areNarrower(both.names, other.names) }
	if !slices.ContainsFunc(list, isWider) {
		return list
	}
	list[i] = &hostScope{scope: both.scope, isRest: true}
	named := &scope{what: both.what, limits: both.limits, inner: both.inner}
	return append(list, &hostScope{scope: named, names: both.names})
}

// selectHosts selects the requests to the hosts.
func (s *hostScope) selectHosts() {
	if s.isRest {
		return
	}
	var hosts []request.Pattern
	for _, name := range s.names {
		if !request.IsHostOrWildcard(name) {
			s.fits.CannotMatch("a policy has hosts such as a.example and *.a.example, not " + name)
			continue
		}
		hosts = append(hosts, request.Exact(name))
	}
	if len(s.fits.WhyOff) == 0 { // else the match would have a part of the requests
		s.fits.Match = request.Host.Matching(hosts...)
	}
}

// leaveTo leaves the requests to another one that nginx prefers for them: one with narrower names, and of all hosts
// one with any.
func (s *hostScope) leaveTo(other *hostScope) {
	switch {
	case len(other.names) == 0, !s.isRest && !areNarrower(other.names, s.names):
	case areNarrower(s.names, other.names): // an exempt would have the hosts that each takes from the other
		s.fits.CannotMatch("the server and the " + other.what + " take hosts from each other")
	default:
		s.winners = append(s.winners, other.scope)
	}
}

// areNarrower reports whether one of the names is a host of one of the others, which are wider.
func areNarrower(names, wider []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc(wider, func(wide string) bool { return request.IsHostBelow(name, wide) })
	})
}

// noteOfServerName says that $server_name of nginx is another text than the host; empty if it is the same: if there is
// one server with one name.
func noteOfServerName(blocks []*nginxconf.Directive) string {
	switch len(blocks) {
	case 0:
		return ""
	case 1:
		names := readServer(blocks[0]).names
		if len(names) == 1 && !strings.HasPrefix(names[0], "*") {
			return ""
		}
	}
	return "nginx counts the hosts of one server together. Here each host counts by itself."
}
