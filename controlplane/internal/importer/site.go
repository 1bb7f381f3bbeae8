package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// site is what one listener of Envoy says about limits: its filters, and the
// routes with their rate_limits.
type site struct {
	name, routes string // of the listener, and of its routes
	filters      []filterConfig
	in           *source      // of the routing
	routing      *policy.Node // has virtual_hosts, or is nil
}

// filterConfig is the configuration of a filter, decoded when it is needed.
type filterConfig struct {
	in       *source
	name     string // of the filter
	message  string // the name of its type
	node     *policy.Node
	disabled bool
}

// sites finds the listeners in configurations of Envoy, each with the routes
// that it names, and routes that no listener names. It reads the trees of the
// files, because listeners hold configurations of types that this import does
// not know.
func sites(files ...*source) []*site {
	var listeners, routes []*site
	for _, in := range files {
		in.find(in.root, "", &listeners, &routes)
	}
	used := map[*site]bool{}
	for _, s := range listeners {
		if s.routing != nil {
			continue
		}
		from := func(r *site) bool { return s.routes != "" && r.name == s.routes }
		at := slices.IndexFunc(routes, from)
		last := slices.IndexFunc(routes, func(r *site) bool { return r.in != files[0] })
		if at < 0 && last >= 0 && last == len(routes)-1 { // the only ones that were given for it
			at = last
		}
		if at >= 0 {
			s.in, s.routing, used[routes[at]] = routes[at].in, routes[at].routing, true
		}
	}
	return append(listeners, slices.DeleteFunc(routes, func(r *site) bool { return used[r] })...)
}

// find adds the listeners and routes below a node.
func (in *source) find(n *policy.Node, listener string, listeners, routes *[]*site) {
	for _, item := range n.Items {
		in.find(item, listener, listeners, routes)
	}
	if fieldOf(n, "filter_chains") != nil {
		address := fieldOf(n, "address", "socket_address")
		listener = cmp.Or(textOf(n, "name"), textOf(address, "address")+":"+textOf(address, "port_value"))
	}
	filters := fieldOf(n, "http_filters")
	switch {
	case filters != nil:
		s := &site{name: listener, in: in, routing: fieldOf(n, "route_config")}
		s.routes = cmp.Or(textOf(s.routing, "name"), textOf(n, "rds", "route_config_name"))
		if listener == "" {
			s.name = "line " + strconv.Itoa(n.Line)
		}
		for _, f := range filters.Items {
			c := in.config(textOf(f, "name"), fieldOf(f, "typed_config"))
			c.disabled = textOf(f, "disabled") == "true"
			s.filters = append(s.filters, c)
		}
		*listeners = append(*listeners, s)
	case fieldOf(n, "virtual_hosts") != nil:
		name := cmp.Or(textOf(n, "name"), listener, "line "+strconv.Itoa(n.Line))
		*routes = append(*routes, &site{name: name, in: in, routing: n})
	default:
		for _, f := range n.Fields {
			if !isField(f.Name, "warming_state") && !isField(f.Name, "draining_state") { // no request comes to these
				in.find(f.Value, listener, listeners, routes)
			}
		}
	}
}

// config finds the configuration in a typed_config, which may be in a
// TypedStruct or in a FilterConfig of a route.
func (in *source) config(name string, n *policy.Node) filterConfig {
	message := typeOf(textOf(n, "@type"))
	switch {
	case strings.HasSuffix(message, ".TypedStruct"):
		message, n = typeOf(textOf(n, "type_url")), fieldOf(n, "value")
	case strings.HasSuffix(message, ".FilterConfig"):
		c := in.config(name, fieldOf(n, "config"))
		c.disabled = textOf(n, "disabled") == "true"
		return c
	}
	return filterConfig{in: in, name: name, message: message, node: n}
}

// typeOf is the name of a message in an address of its type.
func typeOf(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// isA reports whether a configuration is of a message type.
func isA[M proto.Message](c filterConfig) bool {
	var m M
	return c.node != nil && c.message == string(m.ProtoReflect().Descriptor().FullName())
}

// configOf decodes the first of these configurations that is an M; nil if none is.
func configOf[M proto.Message](list []filterConfig) (m M) {
	if at := slices.IndexFunc(list, isA[M]); at >= 0 {
		return decodeOnce[M](list[at].in, list[at].node)
	}
	return m
}

// decodeOnce decodes an object by the type M, once.
func decodeOnce[M proto.Message](in *source, n *policy.Node) (m M) {
	if known, ok := in.decoded[n]; ok {
		return known.(M)
	}
	m, _ = m.ProtoReflect().New().Interface().(M)
	in.decoded[n] = m
	path := string(m.ProtoReflect().Descriptor().Name())
	if n == in.root || fieldOf(n, "virtual_hosts") != nil {
		path = "" // its fields are known without it
	}
	in.decode(n, path, m)
	return m
}

// limited reports whether any route has rate_limits.
func (s *site) limited() bool {
	return contains(s.routing, func(n *policy.Node) bool { return len(itemsOf(n, "rate_limits")) > 0 })
}

// text is what a site says, to compare it with others.
func (s *site) text() string {
	b := []byte(s.name)
	for _, c := range s.filters {
		if c.node != nil {
			b = policy.AppendJSON(append(b, c.message...), c.node)
		}
	}
	if s.routing != nil {
		b = policy.AppendJSON(b, s.routing)
	}
	return string(b)
}

// contains reports whether an object in the tree is wanted.
func contains(n *policy.Node, wants func(n *policy.Node) bool) bool {
	return n != nil && (wants(n) ||
		slices.ContainsFunc(n.Items, func(item *policy.Node) bool { return contains(item, wants) }) ||
		slices.ContainsFunc(n.Fields, func(f policy.Field) bool { return contains(f.Value, wants) }))
}

// choose picks the site that has what is wanted, by name where there are
// several; nil if there is none.
func choose(sites []*site, listener string, wants func(s *site) bool) (*site, error) {
	seen, ofName := map[string]bool{}, map[string]int{}
	fits := slices.DeleteFunc(slices.Clone(sites), func(s *site) bool {
		id := s.text()
		if !wants(s) || seen[id] { // Istio has a chain for TLS and the same for plain text
			return true
		}
		seen[id] = true
		ofName[s.name]++
		return false
	})
	var names []string
	var chosen []*site
	for _, s := range fits {
		name := s.name
		if ofName[s.name] > 1 && s.routes != "" {
			name += "/" + s.routes
		}
		for n, base := 2, name; slices.Contains(names, name); n++ {
			name = base + "#" + strconv.Itoa(n)
		}
		names = append(names, name)
		if listener == "" || listener == name || listener == s.name && ofName[s.name] == 1 {
			chosen = append(chosen, s)
		}
	}
	switch {
	case len(fits) == 0:
		return nil, nil
	case len(chosen) != 1:
		message := fmt.Sprintf("there are rate limits for %d listeners, and a policy is for one", len(names))
		if listener != "" {
			message = fmt.Sprintf("there is no listener %q with rate limits", listener)
		}
		return nil, &UsageError{message, "choose one with --listener: " + strings.Join(names, ", ")}
	case chosen[0].routing == nil:
		s := chosen[0]
		s.in.add(place{}, strings.TrimSpace("The routes "+s.routes)+" of the listener "+s.name+" are not in this file: give them with "+
			"--routes FILE.")
	}
	return chosen[0], nil
}
