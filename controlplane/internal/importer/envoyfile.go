package importer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ofEnvoy are fields that a configuration of Envoy, or a part of it, begins with.
var ofEnvoy = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// refuseForService rejects a file that is not a configuration of envoyproxy/ratelimit: it says what the file
// is, and what to do.
func (r *reader) refuseForService(in *source) {
	n := in.firstResource()
	switch why := whyUnread(n); {
	case isOfEnvoy(n):
		is := "a configuration of Envoy"
		if textOf(n, "kind") == "EnvoyFilter" {
			is = "an EnvoyFilter"
		}
		r.fail(in.top(), "this is "+is+": give it as --routes, beside the configuration of envoyproxy/ratelimit, or to "+
			"sluice import local-ratelimit")
	case why != "":
		r.fail(in.top(), why)
	}
}

// refuseForEnvoy rejects a file that is not a configuration of Envoy, as refuseForService does.
func (r *reader) refuseForEnvoy(in *source) {
	n := in.firstResource()
	switch why := whyUnread(n); {
	case isOfEnvoy(n):
	case why != "":
		r.fail(in.top(), why)
	case textOf(n, "kind") == "" && fieldOf(n, "domain") != nil && fieldOf(n, "descriptors") != nil:
		r.fail(in.top(), "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit")
	}
}

// firstResource is the resource that tells what a file is: the first EnvoyFilter, or else the first of all.
func (in *source) firstResource() *policy.Node {
	if list := append(ofKind(in.root, "EnvoyFilter"), resources(in.root)...); len(list) > 0 {
		return list[0]
	}
	return in.root
}

// isOfEnvoy reports whether a resource is an EnvoyFilter, a configuration of Envoy or a part of one.
func isOfEnvoy(n *policy.Node) bool {
	kind := textOf(n, "kind")
	has := func(name string) bool { return fieldOf(n, name) != nil }
	return kind == "EnvoyFilter" || kind == "" && slices.ContainsFunc(ofEnvoy, has)
}

// whyUnread says what a resource is that no import of envoyproxy/ratelimit or Envoy reads, and what to do;
// empty for others.
func whyUnread(n *policy.Node) string {
	switch kind := textOf(n, "kind"); {
	case isOfEnvoy(n), kind == trafficPolicy, kind == "List":
	case kind == "ConfigMap":
		return `this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap NAME ` +
			`-o 'jsonpath={.data.FILE\.yaml}'`
	case kind != "":
		return "this is a " + clip(kind, 100) + " (" + clip(textOf(n, "api_version"), 100) +
			"), which the import does not read: write its limits as rules of a policy"
	case fieldOf(n, "rules") != nil && fieldOf(n, "version") != nil:
		return "this is a policy already: sluice validate reads it"
	}
	return ""
}

// openEnvoy opens a configuration of Envoy, or a part of one as the whole.
func (r *reader) openEnvoy(f File) (*source, error) {
	in, err := r.open(f)
	if err != nil {
		return nil, err
	}
	return in, r.asEnvoy(in)
}

// asEnvoy has the file read as a configuration of Envoy.
func (r *reader) asEnvoy(in *source) error {
	r.refuseForEnvoy(in)
	in.root = r.whole(in)
	return r.err()
}

// limitFields are the fields that lead to the limits of a configuration of Envoy.
var limitFields = []string{
	"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
	"typed_per_filter_config", "virtual_hosts",
}

// whyNothing says why there is no rate limit in a file: a name that is spelled wrongly, or a filter
// that the import does not read.
func (r *reader) whyNothing(in *source) error {
	unread := ""
	contains(in.root, func(n *policy.Node) bool {
		r.refuseTypos(n, in.top(), limitFields)
		if t := typeOf(textOf(n, "@type")); strings.Contains(t, "ratelimit") || strings.Contains(t, "rate_limit") {
			unread = t
		}
		return false
	})
	hasActions := contains(in.root, func(n *policy.Node) bool { return fieldOf(n, "rate_limits") != nil })
	switch {
	case r.err() != nil:
		return r.err()
	case hasActions, strings.HasPrefix(unread, strings.TrimSuffix(serviceFilter, ".")):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", ErrNothing)
	case unread != "":
		return fmt.Errorf("%w: %s is not read", ErrNothing, unread)
	}
	return nil
}

// whole makes the configuration of Envoy of EnvoyFilters and of parts of it.
func (r *reader) whole(in *source) *policy.Node {
	root := in.root
	if filters := ofKind(root, "EnvoyFilter"); len(filters) > 0 {
		return r.patched(filters, in.top())
	}
	list := root
	if root.Kind != policy.List {
		list = listOf(root)
	}
	has := func(names ...string) bool {
		return len(list.Items) > 0 && !slices.ContainsFunc(list.Items, func(n *policy.Node) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return fieldOf(n, name) != nil })
		})
	}
	switch {
	case has("routes"):
		return object(field("virtual_hosts", list))
	case has("route", "typed_per_filter_config") && !has("rate_limits", "domains", "virtual_hosts"):
		routes := listOf()
		for _, n := range list.Items {
			if fieldOf(n, "match") == nil { // as a patch has it
				n = withMatch(n, everyRequest())
			}
			routes.Items = append(routes.Items, n)
		}
		return object(field("virtual_hosts", listOf(object(field("routes", routes)))))
	}
	return root
}

// patched is the listener that the patches of EnvoyFilters make. The place is that of their file.
func (r *reader) patched(envoyFilters []*policy.Node, at place) *policy.Node {
	filters, hosts := listOf(), listOf()
	for _, e := range envoyFilters {
		for _, p := range itemsOf(e, "spec", "config_patches") {
			value := fieldOf(p, "patch", "value")
			vhost := fieldOf(p, "match", "route_configuration", "vhost")
			switch to := textOf(p, "apply_to"); {
			case value == nil:
			case to == "HTTP_FILTER":
				filters.Items = append(filters.Items, value)
			case to == "VIRTUAL_HOST", to == "ROUTE_CONFIGURATION":
				h := hostOf(hosts, textOf(vhost, "name"))
				h.Fields = append(h.Fields, value.Fields...)
			case to == "HTTP_ROUTE":
				requests := everyRequest()
				if name := textOf(vhost, "route", "name"); name != "" {
					requests = object()
					r.note(at, "an EnvoyFilter is for the route "+name+", and does not say which requests that route takes: "+
						"its rules are off until they have a match")
				}
				routes := fieldOf(hostOf(hosts, textOf(vhost, "name")), "routes")
				routes.Items = append(routes.Items, withMatch(value, requests))
			}
		}
	}
	for _, h := range hosts.Items {
		if routes := fieldOf(h, "routes"); len(routes.Items) == 0 {
			routes.Items = []*policy.Node{withMatch(object(), everyRequest())}
		}
	}
	r.note(place{}, "An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for every "+
		"request of the proxies that get the policy.")
	listener := object(field("http_filters", filters))
	if len(hosts.Items) > 0 {
		listener.Fields = append(listener.Fields, field("route_config", object(field("virtual_hosts", hosts))))
	}
	return listener
}

// hostOf is the virtual host that Istio names by its domain, or in a way that stands for every
// request.
func hostOf(hosts *policy.Node, domain string) *policy.Node {
	isAnyName := strings.HasPrefix(domain, "*") && !strings.HasPrefix(domain, "*.")
	if domain == "" || isAnyName || strings.HasPrefix(domain, "inbound|") {
		domain = "*"
	}
	for _, h := range hosts.Items {
		if itemsOf(h, "domains")[0].Text == domain {
			return h
		}
	}
	h := object(field("domains", listOf(textNode(domain))), field("routes", listOf()))
	hosts.Items = append(hosts.Items, h)
	return h
}

// withMatch is a route with a match.
func withMatch(n, condition *policy.Node) *policy.Node {
	return object(append(slices.Clip(n.Fields), field("match", condition))...)
}

func everyRequest() *policy.Node { return object(field("prefix", textNode("/"))) }
