package envoyfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ofEnvoy are fields that a configuration of Envoy, or a part of it, begins with.
var ofEnvoy = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// RefuseForService rejects a file that is not a configuration of envoyproxy/ratelimit: it says what the file
// is, and what to do.
func RefuseForService(to *draft.Draft, in *source.Document) {
	n := firstResource(in)
	switch why := whyUnread(n); {
	case isOfEnvoy(n):
		is := "a configuration of Envoy"
		if source.TextOf(n, "kind") == "EnvoyFilter" {
			is = "an EnvoyFilter"
		}
		to.Fail(in.Top(), "this is "+is+": give it as --routes, beside the configuration of envoyproxy/ratelimit, "+
			"or to sluice import local-ratelimit")
	case why != "":
		to.Fail(in.Top(), why)
	}
}

// refuseOthers rejects a file that is not a configuration of Envoy, as RefuseForService does.
func refuseOthers(to *draft.Draft, in *source.Document) {
	n := firstResource(in)
	switch why := whyUnread(n); {
	case isOfEnvoy(n):
	case why != "":
		to.Fail(in.Top(), why)
	case source.TextOf(n, "kind") == "" && source.FieldOf(n, "domain") != nil && source.FieldOf(n, "descriptors") != nil:
		to.Fail(in.Top(), "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit")
	}
}

// firstResource is the resource that tells what a file is: the first EnvoyFilter, or else the first of all.
func firstResource(in *source.Document) *policy.Node {
	if list := append(in.OfKind("EnvoyFilter"), in.Resources()...); len(list) > 0 {
		return list[0].Node
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
	case isOfEnvoy(n), kind == source.TrafficPolicy, kind == "List":
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

// limitFields are the fields that lead to the limits of a configuration of Envoy.
var limitFields = []string{
	"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
	"typed_per_filter_config", "virtual_hosts",
}

// WhyNothing says why there is no rate limit in a file: a name that is spelled wrongly, or a filter
// that the import does not read.
func WhyNothing(to *draft.Draft, in *source.Document) error {
	unread := ""
	source.Walk(in.Root, func(n *policy.Node) {
		RefuseTypos(to, n, in.Top(), limitFields)
		if t := typeOf(source.TextOf(n, "@type")); isOfLimits(t) {
			unread = t
		}
	})
	hasActions := source.Contains(in.Root, func(n *policy.Node) bool { return source.FieldOf(n, "rate_limits") != nil })
	switch {
	case to.Err() != nil:
		return to.Err()
	case hasActions, strings.HasPrefix(unread, ServiceType):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", draft.ErrNothing)
	case unread != "":
		return fmt.Errorf("%w: %s is not read", draft.ErrNothing, unread)
	}
	return nil
}

// saysLimits reports whether a part of a configuration has rate_limits or a filter that limits.
func saysLimits(n *policy.Node) bool {
	return source.Contains(n, func(n *policy.Node) bool {
		return source.FieldOf(n, "rate_limits") != nil ||
			isOfLimits(source.TextOf(n, "@type")) || isOfLimits(source.TextOf(n, "type_url"))
	})
}

// isOfLimits reports whether a message is one of Envoy's limiters, by its name.
func isOfLimits(typeName string) bool {
	return strings.Contains(typeName, "ratelimit") || strings.Contains(typeName, "rate_limit")
}

// RefuseTypos rejects unknown fields of an object whose names resemble a field that leads to limits.
func RefuseTypos(to *draft.Draft, n *policy.Node, at source.Place, known []string) {
	for _, f := range n.Fields {
		near := message.Nearest(f.Name, known)
		isKnown := slices.ContainsFunc(known, func(name string) bool { return source.IsField(f.Name, name) })
		difference := len(near) - len(f.Name)
		if near != "" && !isKnown && -1 <= difference && difference <= 1 {
			to.Fail(at.In(f.Name), `unknown field: did you mean "`+near+`"?`)
		}
	}
}
