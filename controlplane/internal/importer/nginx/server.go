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
	body
	names        []string
	ports        []string
	defaultPorts []string // ports for which it says that it is the default server
	at           source.Place
}

// readServers are the scopes of servers. nginx chooses a server by the port, then by the host. A policy knows the host
// alone, so each host gets one server: a server has no scope, one or two. An example: the default server has the name
// a.example and the limits D, another one has *.example and the limits W.
//
//	servers, as written    byHosts           the scope is for   its winners
//	default: a.example D   the rest, of D    all hosts          *.example and a.example
//	                       a.example, of D   a.example          none: it is the narrower name
//	*.example W            *.example, of W   *.example          a.example
func (n *reader) readServers(blocks []*nginxconf.Directive, around map[module]limitSet) []innerScope {
	if n.refuseTooMany(blocks) {
		return nil
	}
	var servers []*server
	for _, d := range blocks {
		servers = append(servers, n.readServer(d))
	}
	list := n.byHosts(servers)
	var scopes []*scope
	for i, h := range list {
		selection := h.selection(slices.Concat(list[:i], list[i+1:]))
		scopes = append(scopes, n.readServerBody(h.server.body, around, selection))
	}
	return beside(scopes, func(one, other int) bool { return list[one].winsOver(list[other]) })
}

// readServer reads a server.
func (n *reader) readServer(d *nginxconf.Directive) *server {
	s := &server{at: source.PlaceOf(d), names: serverNames(d)}
	for _, l := range nginxconf.Named(d.Block, "listen") {
		s.ports = append(s.ports, portOf(l.Arg(0)))
		if slices.Contains(l.Args, "default_server") || slices.Contains(l.Args, "default") {
			s.defaultPorts = append(s.defaultPorts, portOf(l.Arg(0)))
		}
	}
	if len(s.ports) == 0 {
		s.ports = []string{"80"}
	}
	s.body = n.newBody("server "+strings.Join(s.names, " "), d.Block)
	return s
}

// serverNames are the names of a server. The name .a.example stands for a.example and *.a.example.
func serverNames(d *nginxconf.Directive) (names []string) {
	for _, listed := range nginxconf.Named(d.Block, "server_name") {
		for _, name := range listed.Args {
			name = strings.ToLower(name)
			if bare, isBoth := strings.CutPrefix(name, "."); isBoth {
				names = append(names, bare, "*."+bare)
			} else if name != "" && name != "_" {
				names = append(names, name)
			}
		}
	}
	return names
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

// hosts are those for which nginx chooses one server: those of some of its names, or, without names, the rest: those
// that no server names.
type hosts struct {
	server *server
	names  []string // no other hosts have one of them
}

func (h hosts) areRest() bool { return len(h.names) == 0 }

// byHosts are the hosts of the servers, in their order. Servers to which no request comes have none.
//
//  1. One server is for the rest (defaultServer).
//  2. Each name is of one server (claimedNames).
//  3. The server for the rest needs no scope for its own names, except those that are hosts of another server's
//     *.example: no selection has both such a name and all hosts but *.example.
func (n *reader) byHosts(servers []*server) (list []hosts) {
	ofRest := n.defaultServer(servers)
	names := n.claimedNames(servers)
	isInRest := func(name string) bool {
		isWider := func(s *server) bool { return s != ofRest && areNarrower([]string{name}, names[s]) }
		return !slices.ContainsFunc(servers, isWider)
	}
	names[ofRest] = slices.DeleteFunc(names[ofRest], isInRest)
	for _, s := range servers {
		if s == ofRest {
			list = append(list, hosts{server: s})
		}
		if len(names[s]) > 0 {
			list = append(list, hosts{s, names[s]})
		}
	}
	return list
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

// selection is for the requests to the hosts. No match has them if a policy has no such name, or if other hosts take
// requests from these hosts, and these take requests from the others.
func (h hosts) selection(beside []hosts) (s request.Selection) {
	if !h.areRest() {
		s = request.ToHosts(h.names)
	}
	for _, other := range beside {
		if h.takesFrom(other) && other.takesFrom(h) { // an exempt of either would have the requests of both
			s.TurnOff(request.NoMatch("the server and the " + other.server.label + " take hosts from each other"))
		}
	}
	return s
}

// winsOver reports whether nginx prefers these hosts for the requests that fit both, and never the others.
func (h hosts) winsOver(other hosts) bool { return h.takesFrom(other) && !other.takesFrom(h) }

// takesFrom reports whether nginx prefers these hosts for some request that fits the others: they have narrower names,
// or any names where the others are the rest.
func (h hosts) takesFrom(other hosts) bool {
	return other.areRest() && !h.areRest() || areNarrower(h.names, other.names)
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
		names := serverNames(blocks[0])
		if len(names) == 1 && !strings.HasPrefix(names[0], "*") {
			return ""
		}
	}
	return "nginx counts the hosts of one server together. Here each host counts by itself."
}
