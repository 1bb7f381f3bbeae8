package envoy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// site is what one listener of Envoy says about limits: its filters, and the routes with their
// rate_limits. It is found in the tree of a file, because listeners hold configurations of types
// that this import does not know. What findSites looks for, wherever it stands:
//
//	name: front                                   the listener: what has filter_chains
//	filter_chains:
//	- filters:
//	  - typed_config:
//	      http_filters: [...]                     a site: what has http_filters. These are its filters
//	      route_config: {virtual_hosts: [...]}    its routing; or, as rds names it,
//	      rds: {route_config_name: shop}          the one of that name below
//
//	name: shop                                    a routing apart from a listener: what has virtual_hosts. If no
//	virtual_hosts: [...]                          listener has it, it is a site without filters
type site struct {
	name       string // of the listener, or of routes that no listener names
	routesName string // the routes that the listener names
	filters    []filterConfig
	routing    routing
}

// routing is a configuration of routes.
type routing struct {
	name string // if it stands apart from a listener
	file string
	at   source.Place
	node *policy.Node // has virtual_hosts; nil if the routes of a listener are not found
}

// findSites finds the listeners in configurations of Envoy, each with the routes that it names, and
// routes that no listener names.
func findSites(files ...*source.Document) []*site {
	var found foundSites
	for _, in := range files {
		found.addBelow(in, in.Root, "")
	}
	used := map[*routing]bool{}
	list := found.listeners
	for _, s := range found.listeners {
		if s.routing.node != nil {
			continue
		}
		if routes := found.routesOf(s, files[0].File); routes != nil {
			s.routing = *routes
			used[routes] = true
		}
	}
	for _, routes := range found.apart {
		if !used[routes] {
			list = append(list, &site{name: routes.name, routing: *routes})
		}
	}
	return list
}

// foundSites are the listeners of some files, and the routes that stand apart from a listener.
type foundSites struct {
	listeners []*site
	apart     []*routing
}

// routesOf are the routes that a listener names. If it names none of these, they are the routes of a file
// that was given beside the first one, if that has only one; nil if there are none for it.
func (f *foundSites) routesOf(s *site, first string) *routing {
	var given []*routing
	for _, routes := range f.apart {
		if s.routesName != "" && routes.name == s.routesName {
			return routes
		}
		if routes.file != first {
			given = append(given, routes)
		}
	}
	if len(given) == 1 {
		return given[0]
	}
	return nil
}

// addBelow adds the sites at and below a node of a file. The node is in the listener of that name, if any.
func (f *foundSites) addBelow(in *source.Document, n *policy.Node, listener string) {
	for _, item := range n.Items {
		f.addBelow(in, item, listener)
	}
	if source.FieldOf(n, "filter_chains") != nil {
		address := source.FieldOf(n, "address", "socket_address")
		ipAndPort := source.TextOf(address, "address") + ":" + source.TextOf(address, "port_value")
		listener = cmp.Or(source.TextOf(n, "name"), ipAndPort)
	}
	line := "line " + strconv.Itoa(n.Line)
	switch {
	case source.FieldOf(n, "http_filters") != nil:
		s := readListener(in, n)
		s.name = cmp.Or(listener, line)
		f.listeners = append(f.listeners, s)
	case source.FieldOf(n, "virtual_hosts") != nil:
		name := cmp.Or(source.TextOf(n, "name"), listener, line)
		f.apart = append(f.apart, &routing{name: name, file: in.File, at: in.Top(), node: n})
	default:
		for _, child := range n.Fields {
			// No request comes to these.
			isIdle := source.IsField(child.Name, "warming_state") || source.IsField(child.Name, "draining_state")
			if !isIdle {
				f.addBelow(in, child.Value, listener)
			}
		}
	}
}

// readListener reads what has http_filters, and its routes if they are in it. The paths of places start at it.
func readListener(in *source.Document, n *policy.Node) *site {
	routes := source.FieldOf(n, "route_config")
	s := &site{routing: routing{file: in.File, at: in.Top().In("route_config"), node: routes}}
	s.routesName = cmp.Or(source.TextOf(routes, "name"), source.TextOf(n, "rds", "route_config_name"))
	for i, f := range source.ItemsOf(n, "http_filters") {
		at := in.Top().Item("http_filters", i).In("typed_config")
		c := filterConfigAt(source.TextOf(f, "name"), source.FieldOf(f, "typed_config"), at)
		c.disabled = source.TextOf(f, "disabled") == "true"
		s.filters = append(s.filters, c)
	}
	return s
}

// hasLimits reports whether any route has rate_limits.
func (s *site) hasLimits() bool {
	return source.Contains(s.routing.node, func(n *policy.Node) bool { return len(source.ItemsOf(n, "rate_limits")) > 0 })
}

// enables reports whether a route, or what routes are in, enables a filter of that name that is disabled.
func (s *site) enables(filter string) bool {
	isOn := func(c filterConfig) bool { return c.name == filter && !c.disabled }
	return source.Contains(s.routing.node, func(n *policy.Node) bool {
		return slices.ContainsFunc(configsPerRoute(n, source.Place{}), isOn)
	})
}

// text is what a site says, to compare it with others.
func (s *site) text() string {
	b := []byte(s.name)
	for _, c := range s.filters {
		if c.node != nil {
			b = policy.AppendJSON(append(b, c.typeName...), c.node)
		}
	}
	if s.routing.node != nil {
		b = policy.AppendJSON(b, s.routing.node)
	}
	return string(b)
}

// choose picks the site that has what is wanted, by --listener where there are several; nil if there is none.
func (r *reader) choose(sites []*site, wants func(s *site) bool) (*site, error) {
	listener := r.options.Listener
	fits := distinct(slices.DeleteFunc(slices.Clone(sites), func(s *site) bool { return !wants(s) }))
	if len(fits) == 0 {
		return nil, nil
	}
	names, chosen := namesOfSites(fits), []*site(nil)
	for i, s := range fits {
		isOnly := !slices.ContainsFunc(fits, func(other *site) bool { return other != s && other.name == s.name })
		if listener == "" || listener == names[i] || listener == s.name && isOnly {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) != 1 {
		message := fmt.Sprintf("there are rate limits for %d listeners, and a policy is for one", len(names))
		if listener != "" {
			message = fmt.Sprintf("there is no listener %q with rate limits", listener)
		}
		return nil, &source.UsageError{Message: message, Hint: "choose one with --listener: " + strings.Join(names, ", ")}
	}
	s := chosen[0]
	if s.routing.node == nil {
		routes := strings.TrimSpace("The routes " + s.routesName)
		r.NoteImport(routes + " of the listener " + s.name + " are not in this file: give them with --routes FILE.")
	}
	return s, nil
}

// distinct leaves out sites that say the same: Istio has a chain for TLS, and the same for plain
// text.
func distinct(sites []*site) []*site {
	seen := map[string]bool{}
	return slices.DeleteFunc(sites, func(s *site) bool {
		id := s.text()
		isKnown := seen[id]
		seen[id] = true
		return isKnown
	})
}

// namesOfSites are the names of listeners, each with what tells it from others of its name.
func namesOfSites(sites []*site) (names []string) {
	count := map[string]int{}
	for _, s := range sites {
		count[s.name]++
	}
	for _, s := range sites {
		name := s.name
		if count[s.name] > 1 && s.routesName != "" {
			name += "/" + s.routesName
		}
		for n, base := 2, name; slices.Contains(names, name); n++ {
			name = base + "#" + strconv.Itoa(n)
		}
		names = append(names, name)
	}
	return names
}
