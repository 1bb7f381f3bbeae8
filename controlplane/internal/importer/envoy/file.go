package envoy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ofEnvoy are fields that a configuration of Envoy, or a part of it, begins with.
var ofEnvoy = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// refuseForService rejects a file that is not a configuration of envoyproxy/ratelimit: it says what the file
// is, and what to do.
func (r *reader) refuseForService(in *source.Document) {
	n := firstResource(in)
	switch why := whyUnread(n); {
	case isOfEnvoy(n):
		is := "a configuration of Envoy"
		if source.TextOf(n, "kind") == "EnvoyFilter" {
			is = "an EnvoyFilter"
		}
		r.Fail(in.Top(), "this is "+is+": give it as --routes, beside the configuration of envoyproxy/ratelimit, or to "+
			"sluice import local-ratelimit")
	case why != "":
		r.Fail(in.Top(), why)
	}
}

// refuseForEnvoy rejects a file that is not a configuration of Envoy, as refuseForService does.
func (r *reader) refuseForEnvoy(in *source.Document) {
	n := firstResource(in)
	switch why := whyUnread(n); {
	case isOfEnvoy(n):
	case why != "":
		r.Fail(in.Top(), why)
	case source.TextOf(n, "kind") == "" && source.FieldOf(n, "domain") != nil && source.FieldOf(n, "descriptors") != nil:
		r.Fail(in.Top(), "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit")
	}
}

// firstResource is the resource that tells what a file is: the first EnvoyFilter, or else the first of all.
func firstResource(in *source.Document) *policy.Node {
	if list := append(source.OfKind(in.Root, "EnvoyFilter"), source.Resources(in.Root)...); len(list) > 0 {
		return list[0]
	}
	return in.Root
}

// isOfEnvoy reports whether a resource is an EnvoyFilter, a configuration of Envoy or a part of one.
func isOfEnvoy(n *policy.Node) bool {
	kind := source.TextOf(n, "kind")
	has := func(name string) bool { return source.FieldOf(n, name) != nil }
	return kind == "EnvoyFilter" || kind == "" && slices.ContainsFunc(ofEnvoy, has)
}

// whyUnread says what a resource is that no import of envoyproxy/ratelimit or Envoy reads, and what to do;
// empty for others.
func whyUnread(n *policy.Node) string {
	switch kind := source.TextOf(n, "kind"); {
	case isOfEnvoy(n), kind == TrafficPolicy, kind == "List":
	case kind == "ConfigMap":
		return `this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap NAME ` +
			`-o 'jsonpath={.data.FILE\.yaml}'`
	case kind != "":
		return "this is a " + draft.Clip(kind, 100) + " (" + draft.Clip(source.TextOf(n, "api_version"), 100) +
			"), which the import does not read: write its limits as rules of a policy"
	case source.FieldOf(n, "rules") != nil && source.FieldOf(n, "version") != nil:
		return "this is a policy already: sluice validate reads it"
	}
	return ""
}

// openEnvoy opens a configuration of Envoy, or a part of one as the whole.
func (r *reader) openEnvoy(f source.File) (*source.Document, error) {
	in, err := source.Open(f)
	if err != nil {
		return nil, err
	}
	return in, r.asEnvoy(in)
}

// asEnvoy puts the configuration of Envoy that a file has, or has a part of, in the place of its document.
func (r *reader) asEnvoy(in *source.Document) error {
	r.refuseForEnvoy(in)
	in.Root = r.whole(in)
	return r.Err()
}

// limitFields are the fields that lead to the limits of a configuration of Envoy.
var limitFields = []string{
	"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
	"typed_per_filter_config", "virtual_hosts",
}

// whyNothing says why there is no rate limit in a file: a name that is spelled wrongly, or a filter
// that the import does not read.
func (r *reader) whyNothing(in *source.Document) error {
	unread := ""
	source.Walk(in.Root, func(n *policy.Node) {
		r.refuseTypos(n, in.Top(), limitFields)
		if t := typeOf(source.TextOf(n, "@type")); strings.Contains(t, "ratelimit") || strings.Contains(t, "rate_limit") {
			unread = t
		}
	})
	hasActions := source.Contains(in.Root, func(n *policy.Node) bool { return source.FieldOf(n, "rate_limits") != nil })
	switch {
	case r.Err() != nil:
		return r.Err()
	case hasActions, strings.HasPrefix(unread, strings.TrimSuffix(serviceFilter, ".")):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", draft.ErrNothing)
	case unread != "":
		return fmt.Errorf("%w: %s is not read", draft.ErrNothing, unread)
	}
	return nil
}

// whole makes the configuration of Envoy of EnvoyFilters and of parts of one. Examples:
//
//	the file is                              the whole is
//	a virtual host: {routes: [...]}          {virtual_hosts: [it]}
//	a route: {match: ..., route: ...}        {virtual_hosts: [{routes: [it]}]}
//	an EnvoyFilter that patches a filter     {http_filters: [the filter]}
//	a configuration with listeners           it
func (r *reader) whole(in *source.Document) *policy.Node {
	root := in.Root
	if filters := source.OfKind(root, "EnvoyFilter"); len(filters) > 0 {
		return r.patched(filters, in.Top())
	}
	list := root
	if root.Kind != policy.List {
		list = source.NewList(root)
	}
	has := func(names ...string) bool {
		return len(list.Items) > 0 && !slices.ContainsFunc(list.Items, func(n *policy.Node) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return source.FieldOf(n, name) != nil })
		})
	}
	switch {
	case has("routes"):
		return source.Wrap("virtual_hosts", list)
	case has("route", "typed_per_filter_config") && !has("rate_limits", "domains", "virtual_hosts"):
		routes := source.NewList()
		for _, n := range list.Items {
			if source.FieldOf(n, "match") == nil { // as a patch has it
				n = withMatch(n, everyRequest())
			}
			routes.Items = append(routes.Items, n)
		}
		return source.Wrap("virtual_hosts", source.NewList(source.Wrap("routes", routes)))
	}
	return root
}

// patched is the listener that the patches of EnvoyFilters make. The place is that of their file.
func (r *reader) patched(envoyFilters []*policy.Node, at source.Place) *policy.Node {
	filters, hosts := source.NewList(), source.NewList()
	for _, e := range envoyFilters {
		for _, p := range source.ItemsOf(e, "spec", "config_patches") {
			value := source.FieldOf(p, "patch", "value")
			vhost := source.FieldOf(p, "match", "route_configuration", "vhost")
			switch to := source.TextOf(p, "apply_to"); {
			case value == nil:
			case to == "HTTP_FILTER":
				filters.Items = append(filters.Items, value)
			case to == "VIRTUAL_HOST", to == "ROUTE_CONFIGURATION":
				h := hostOf(hosts, source.TextOf(vhost, "name"))
				h.Fields = append(h.Fields, value.Fields...)
			case to == "HTTP_ROUTE":
				requests := everyRequest()
				if name := source.TextOf(vhost, "route", "name"); name != "" {
					requests = source.NewObject()
					r.Note(at, "an EnvoyFilter is for the route "+name+", and does not say which requests that route takes: "+
						"its rules are off until they have a match")
				}
				routes := source.FieldOf(hostOf(hosts, source.TextOf(vhost, "name")), "routes")
				routes.Items = append(routes.Items, withMatch(value, requests))
			}
		}
	}
	for _, h := range hosts.Items {
		if routes := source.FieldOf(h, "routes"); len(routes.Items) == 0 {
			routes.Items = []*policy.Node{withMatch(source.NewObject(), everyRequest())}
		}
	}
	r.NoteImport("An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for every " +
		"request of the proxies that get the policy.")
	listener := source.Wrap("http_filters", filters)
	if len(hosts.Items) > 0 {
		listener.Fields = append(listener.Fields, source.NewField("route_config", source.Wrap("virtual_hosts", hosts)))
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
		if source.ItemsOf(h, "domains")[0].Text == domain {
			return h
		}
	}
	domains := source.NewList(source.NewText(domain))
	h := source.NewObject(source.NewField("domains", domains), source.NewField("routes", source.NewList()))
	hosts.Items = append(hosts.Items, h)
	return h
}

// withMatch is a route with a match.
func withMatch(n, condition *policy.Node) *policy.Node {
	return source.NewObject(append(slices.Clip(n.Fields), source.NewField("match", condition))...)
}

func everyRequest() *policy.Node {
	return source.Wrap("prefix", source.NewText("/"))
}
