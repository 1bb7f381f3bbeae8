package nginx

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// server is one server of nginx.
type server struct {
	*scope
	names     []string // readServers changes them: see its steps 3 and 4
	ports     []string
	isDefault []string // ports for which it is the default server
	answers   bool     // without a look at limits
	at        source.Place
}

// readServer reads what a server says of its requests. The name .a.example stands for a.example and *.a.example.
func readServer(d *nginxconf.Directive) *server {
	s := &server{answers: answersItself(d.Block), at: placeOf(d)}
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
			s.isDefault = append(s.isDefault, portOf(l.Arg(0)))
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

// readServers adds the servers of an http block. nginx chooses one by the port, then by the host. A policy knows the
// host alone. So each host gets one server:
//
//  1. Each server is read, with its locations.
//  2. The default server gets the hosts that no server names.
//  3. Of servers with one name, the first that has limits keeps the name.
//  4. The default server becomes two if one of its names is a host of another server's *.example: no selection has both
//     that name and all hosts but *.example.
//  5. Each server selects its names, but the default server selects all hosts.
//  6. A server leaves its requests to those with narrower names, such as a.example beside *.example. The default server
//     leaves them to all that have names.
//
// An example: the default server has the name a.example and the limits D. Another one has *.example and the limits W.
//
//	         the default server: D             the other: W                  made in step 4: D
//	names    a.example                         *.example
//	step 4   none                              *.example                     a.example
//	step 5   all hosts                         *.example                     a.example
//	step 6   all but *.example and a.example   *.example without a.example   a.example
//
// What each step needs of those before it, and what it leaves:
//
//	step                needs                            leaves
//	1  readServer       a block                          names as written, ports, answers, and a scope without conditions
//	2  defaultServer    ports and answers                first, the default server
//	3  dropKnownNames   the names of all                 each name with one server
//	4  splitDefault     first, and names as of step 3    the names that last, and perhaps one more server
//	5  selectHosts      names as of step 4               the scope's Match
//	6  leaveToNarrower  names, and the Match of all      the scope's Exempt and winners
func (n *reader) readServers(http *scope, blocks []*nginxconf.Directive) {
	if n.areTooMany(blocks) {
		return
	}
	for _, d := range blocks { // 1
		s := readServer(d)
		s.scope = n.newScope(http, "server "+strings.Join(s.names, " "), d.Block)
		n.readLocations(s.scope, d.Block, false)
		n.servers = append(n.servers, s)
	}
	first := n.defaultServer(n.servers) // 2
	n.dropKnownNames(n.servers)         // 3
	n.splitDefault(first)               // 4
	for _, s := range n.servers {       // 5
		s.selectHosts(s == first)
	}
	for _, s := range n.servers { // 6
		if s != first && len(s.names) == 0 {
			continue // no request comes to it
		}
		n.leaveToNarrower(s, s == first)
		http.inner = append(http.inner, s.scope)
	}
}

// splitDefault moves the names of the default server to a server of their own, if one of them is a host of another
// server's wildcard. The new server has the same limits and locations, which no later step changes.
func (n *reader) splitDefault(first *server) {
	isWider := func(s *server) bool { return s != first && first.isNarrower(s) }
	if !slices.ContainsFunc(n.servers, isWider) {
		return
	}
	named := *first
	named.scope = &scope{limits: first.limits, inner: first.inner, what: first.what}
	first.names = nil
	n.servers = append(n.servers, &named)
}

// leaveToNarrower leaves the requests of a server to the others that nginx prefers for them.
func (n *reader) leaveToNarrower(s *server, isDefault bool) {
	for _, other := range n.servers {
		switch {
		case other == s, len(other.names) == 0, !isDefault && !other.isNarrower(s):
		case s.isNarrower(other): // an exempt would have the hosts that each takes from the other
			s.CannotMatch("the server and the " + other.what + " take hosts from each other")
		default:
			s.loseTo(other.scope)
		}
	}
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
			if byPort[port] == nil || slices.Contains(s.isDefault, port) {
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
			n.Note(s.at, "nginx chooses the server by the port too, and a policy does not see it: for hosts that no server "+
				"names, the rules are those of another server")
		}
	}
	return first
}

// dropKnownNames takes the names from a server that another one has. The first in the file keeps a name, but servers
// that answer by themselves come last, because they have no limits.
func (n *reader) dropKnownNames(list []*server) {
	owner := map[string]*server{}
	for _, answers := range []bool{false, true} {
		for _, s := range list {
			if s.answers == answers {
				s.names = n.claimNames(s, owner)
			}
		}
	}
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
			n.Note(s.at, "nginx chooses the server of "+name+" by the port too, and a policy does not see it: the rules "+
				"are those of the server before it")
		}
	}
	return names
}

// selectHosts selects the requests of a server.
func (s *server) selectHosts(isDefault bool) {
	if isDefault {
		return
	}
	var hosts []request.Pattern
	for _, name := range s.names {
		if !request.IsHost(strings.TrimPrefix(name, "*.")) {
			s.CannotMatch("a policy has hosts such as a.example and *.a.example, not " + name)
			continue
		}
		hosts = append(hosts, request.Exact(name))
	}
	if len(hosts) > 0 {
		s.Match = request.Host.Matching(hosts...)
	}
}

// isNarrower reports whether the server has a name that one of the other's wildcards has too.
func (s *server) isNarrower(other *server) bool {
	return slices.ContainsFunc(s.names, func(name string) bool {
		return slices.ContainsFunc(other.names, func(wide string) bool { return request.IsHostBelow(name, wide) })
	})
}

// noteOfServerName says that $server_name of nginx is another text than the host; empty if it is the same: if there is
// one server with one name.
func (n *reader) noteOfServerName() string {
	switch {
	case len(n.servers) == 0:
		return ""
	case len(n.servers) == 1 && len(n.servers[0].names) == 1 && !strings.HasPrefix(n.servers[0].names[0], "*"):
		return ""
	}
	return "nginx counts the hosts of one server together. Here each host counts by itself."
}
