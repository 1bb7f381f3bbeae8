package envoyfile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Site is what one listener of Envoy says about limits: its filters, and the routes with their
// rate_limits. It is found in the tree of a file, because listeners hold configurations of types
// that this import does not know. What FindSites looks for, wherever it stands:
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
type Site struct {
	Filters    []Config
	Routing    Routing
	name       string // that of the listener or of the routes alone, for --listener: several sites may have it
	routesName string // of the routes that the listener names
}

// Routing is a configuration of routes.
type Routing struct {
	At   source.Place // in its listener. Routes that stand apart have their file alone: paths start at them
	Node *policy.Node // has virtual_hosts; nil if the routes of a listener are not found
}

// FindSites finds the listeners in a configuration of Envoy, each with the routes that it names, and routes that no
// listener names. Some may be in the file of --routes, beside it; nil = there is none.
func FindSites(in, routes *source.Document) []*Site {
	var found foundSites
	found.addBelow(in, in.Root, "")
	if routes != nil {
		found.addBelow(routes, routes.Root, "")
	}
	used := map[*Site]bool{}
	for _, s := range found.listeners {
		if s.Routing.Node != nil {
			continue
		}
		if routes := found.routesFor(s, in); routes != nil {
			s.Routing = routes.Routing
			used[routes] = true
		}
	}
	unused := slices.DeleteFunc(found.apart, func(routes *Site) bool { return used[routes] })
	return append(found.listeners, unused...)
}

// foundSites are the listeners of some files, and the routes that stand apart from a listener.
type foundSites struct {
	listeners, apart []*Site
}

// routesFor are the routes that a listener of a file names. If it names none of these, it is those of the other file,
// if that has them once; nil if there are none for it.
func (f *foundSites) routesFor(s *Site, in *source.Document) *Site {
	var given []*Site
	for _, routes := range f.apart {
		if s.routesName != "" && routes.name == s.routesName {
			return routes
		}
		if routes.Routing.At.File != in.File {
			given = append(given, routes)
		}
	}
	if len(given) == 1 {
		return given[0]
	}
	return nil
}

// addBelow adds the sites at and below a node of a file. The node is in the listener of that name, if any. A site has
// no others in it.
func (f *foundSites) addBelow(in *source.Document, n *policy.Node, listener string) {
	for _, item := range n.Items {
		f.addBelow(in, item, listener)
	}
	if source.FieldOf(n, "filter_chains") != nil {
		listener = listenerName(n)
	}
	line := "line " + strconv.Itoa(n.Line)
	switch {
	case source.FieldOf(n, "http_filters") != nil:
		s := readListener(in, n)
		s.name = cmp.Or(listener, line)
		f.listeners = append(f.listeners, s)
	case source.FieldOf(n, "virtual_hosts") != nil:
		name := cmp.Or(source.TextOf(n, "name"), listener, line)
		f.apart = append(f.apart, &Site{name: name, Routing: Routing{At: in.Top(), Node: n}})
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

// listenerName is the name of a listener, or else its address.
func listenerName(n *policy.Node) string {
	address := source.FieldOf(n, "address", "socket_address")
	ipAndPort := source.TextOf(address, "address") + ":" + source.TextOf(address, "port_value")
	return cmp.Or(source.TextOf(n, "name"), ipAndPort)
}

// readListener reads what has http_filters, and its routes if they are in it. The paths of places start at it.
func readListener(in *source.Document, n *policy.Node) *Site {
	routes := source.FieldOf(n, "route_config")
	s := &Site{Routing: Routing{At: in.Top().In("route_config"), Node: routes}}
	s.routesName = cmp.Or(source.TextOf(routes, "name"), source.TextOf(n, "rds", "route_config_name"))
	for i, f := range source.ItemsOf(n, "http_filters") {
		at := in.Top().Item("http_filters", i).In("typed_config")
		c := TypedConfig(source.TextOf(f, "name"), source.FieldOf(f, "typed_config"), at)
		c.Disabled = source.TextOf(f, "disabled") == "true"
		s.Filters = append(s.Filters, c)
	}
	return s
}

// HasRateLimits reports whether any route has rate_limits.
func (s *Site) HasRateLimits() bool {
	return hasRateLimits(s.Routing.Node)
}

// Enables reports whether a route, or what routes are in, enables a filter of that name that is disabled.
func (s *Site) Enables(filter string) bool {
	isOn := func(c Config) bool { return c.Name == filter && !c.Disabled }
	return source.Contains(s.Routing.Node, func(n *policy.Node) bool {
		return slices.ContainsFunc(PerFilterConfigs(n, source.Place{}), isOn)
	})
}

// text is what a site says, to compare it with others.
func (s *Site) text() string {
	b := []byte(s.name)
	for _, c := range s.Filters {
		if c.Node != nil {
			b = fmt.Appendf(b, "%q %t %s", c.Name, c.Disabled, c.TypeName)
			b = policy.AppendJSON(b, c.Node)
		}
	}
	if s.Routing.Node == nil { // else they have their name, and may be those of another file
		return string(b) + s.routesName
	}
	b = policy.AppendJSON(b, s.Routing.Node)
	return string(b)
}

// Wanted are the sites that have what is wanted, without those that say the same: Istio has a chain for TLS, and the
// same for plain text.
func Wanted(sites []*Site, wants func(s *Site) bool) (list []*Site) {
	seen := map[string]bool{}
	for _, s := range sites {
		if !wants(s) {
			continue
		}
		if id := s.text(); !seen[id] {
			seen[id] = true
			list = append(list, s)
		}
	}
	return list
}

// Choose picks one of some sites: the only one, or that of --listener.
func Choose(sites []*Site, listener string) (*Site, error) {
	if len(sites) == 1 && listener == "" {
		return sites[0], nil
	}
	names := namesOfSites(sites)
	if i := slices.Index(names, listener); i >= 0 {
		return sites[i], nil
	}
	message := fmt.Sprintf("there is no listener %q with rate limits", listener)
	if listener == "" {
		message = fmt.Sprintf("there are rate limits for %d listeners, and a policy is for one", len(sites))
	}
	return nil, &source.UsageError{Message: message, Hint: "choose one with --listener: " + strings.Join(names, ", ")}
}

// NoteMissingRoutes notes the routes of a site that are not in the files.
func (s *Site) NoteMissingRoutes(to *draft.Findings) {
	if s.Routing.Node == nil {
		routes := strings.TrimSpace("The routes " + s.routesName)
		to.NoteImport(routes + " of the listener " + s.name + " are not in this file: give them with --routes FILE.")
	}
}

// namesOfSites are the names of listeners, each with what tells it from others of its name.
func namesOfSites(sites []*Site) (names []string) {
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
