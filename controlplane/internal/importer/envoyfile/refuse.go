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

// resourceKind is the kind of a resource of Kubernetes; empty for all others.
func resourceKind(n *policy.Node) string { return source.TextOf(n, "kind") }

// isOfEnvoy reports whether a resource is a configuration of Envoy, or a part of one.
func isOfEnvoy(n *policy.Node) bool {
	has := func(name string) bool { return source.FieldOf(n, name) != nil }
	return resourceKind(n) == "" && slices.ContainsFunc(ofEnvoy, has)
}

// tellingResource is the resource that tells what a file is: the first EnvoyFilter, or else the first of all.
func tellingResource(in *source.Document) *policy.Node {
	if list := append(in.OfKind("EnvoyFilter"), in.Resources()...); len(list) > 0 {
		return list[0].Node
	}
	return in.Root
}

// RefuseForService rejects a file that is not a configuration of envoyproxy/ratelimit: it says what the file is, and
// what to do.
func RefuseForService(to *draft.Findings, in *source.Document) {
	const routes = ": give it as --routes, beside the configuration of envoyproxy/ratelimit, or to sluice import " +
		"local-ratelimit"
	n := tellingResource(in)
	why := whyUnread(n)
	switch {
	case resourceKind(n) == "EnvoyFilter":
		why = "this is an EnvoyFilter" + routes
	case isOfEnvoy(n):
		why = "this is a configuration of Envoy" + routes
	}
	if why != "" {
		to.Fail(in.Top(), why)
	}
}

// refuseForEnvoy rejects a file that is not a configuration of Envoy, as RefuseForService does.
func refuseForEnvoy(to *draft.Findings, in *source.Document) {
	n := tellingResource(in)
	why := whyUnread(n)
	isOfService := resourceKind(n) == "" && !isOfEnvoy(n) &&
		source.FieldOf(n, "domain") != nil && source.FieldOf(n, "descriptors") != nil
	if why == "" && isOfService {
		why = "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit"
	}
	if why != "" {
		to.Fail(in.Top(), why)
	}
}

// whyUnread says what a file with a resource is that no import of Envoy's limiters reads, and what to do; empty for
// others. Of a file that it does not know at all, the reader says what is wrong in it.
func whyUnread(n *policy.Node) string {
	switch kind := resourceKind(n); kind {
	case "EnvoyFilter", source.TrafficPolicy, "List": // package gateway reads the second. A List has nothing in it
		return ""
	case "":
		isOwn := source.FieldOf(n, "rules") != nil && source.FieldOf(n, "version") != nil
		if isOwn && !isOfEnvoy(n) {
			return "this is a policy already: sluice validate reads it"
		}
		return ""
	case "ConfigMap":
		return `this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap NAME ` +
			`-o 'jsonpath={.data.FILE\.yaml}'`
	default:
		return "this is a " + draft.Clip(kind, 100) + " (" + draft.Clip(source.TextOf(n, "api_version"), 100) +
			"), which the import does not read: write its limits as rules of a policy"
	}
}

// The fields that lead to limits, in a route and its action, and in a whole configuration of Envoy.
var (
	routeFields = []string{"match", "route", "rate_limits", "typed_per_filter_config"}
	limitFields = []string{
		"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
		"typed_per_filter_config", "virtual_hosts",
	}
)

// RefuseTyposOfRoute rejects unknown fields of a route and its action whose names resemble one that leads to limits.
func RefuseTyposOfRoute(to *draft.Findings, n *policy.Node, at source.Place) {
	refuseTypos(to, n, at, routeFields)
	if action := source.FieldOf(n, "route"); action != nil {
		refuseTypos(to, action, at.In("route"), routeFields)
	}
}

// refuseTypos rejects unknown fields of an object whose names resemble a known one.
func refuseTypos(to *draft.Findings, n *policy.Node, at source.Place, known []string) {
	for _, f := range n.Fields {
		near := message.Nearest(f.Name, known)
		isKnown := slices.ContainsFunc(known, func(name string) bool { return source.IsField(f.Name, name) })
		difference := len(near) - len(f.Name)
		if near != "" && !isKnown && -1 <= difference && difference <= 1 {
			to.Fail(at.In(f.Name), `unknown field: did you mean "`+near+`"?`)
		}
	}
}

// refuseTyposBelow rejects unknown fields of a node and of all below it whose names resemble one that leads to limits.
func refuseTyposBelow(to *draft.Findings, n *policy.Node, at source.Place) {
	refuseTypos(to, n, at, limitFields)
	for i, item := range n.Items {
		refuseTyposBelow(to, item, at.ItemAt(i))
	}
	for _, f := range n.Fields {
		refuseTyposBelow(to, f.Value, at.In(f.Name))
	}
}

// WhyNothing says why there is no rate limit in a file. It rejects unknown fields anywhere whose names resemble a field
// that leads to limits. Else there may be a filter that the import does not read: that is the error. If it knows no
// reason it is nil: then Draft.Finish returns ErrNothing, without one.
func WhyNothing(to *draft.Findings, in *source.Document) error {
	refuseTyposBelow(to, in.Root, in.Top())
	unread := ""
	source.Walk(in.Root, func(n *policy.Node) {
		if t := typeOf(source.TextOf(n, "@type")); isLimiterType(t) {
			unread = t
		}
	})
	switch {
	case hasRateLimits(in.Root), strings.HasPrefix(unread, ServiceType):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", draft.ErrNothing)
	case unread != "":
		return fmt.Errorf("%w: %s is not read", draft.ErrNothing, unread)
	}
	return nil
}

// hasRateLimits reports whether a part of a configuration has rate_limits.
func hasRateLimits(n *policy.Node) bool {
	return source.Contains(n, func(n *policy.Node) bool { return len(source.ItemsOf(n, "rate_limits")) > 0 })
}

// hasRateLimitsOrLimiter reports whether it has rate_limits or a filter that limits.
func hasRateLimitsOrLimiter(n *policy.Node) bool {
	return hasRateLimits(n) || source.Contains(n, func(n *policy.Node) bool {
		return isLimiterType(source.TextOf(n, "@type")) || isLimiterType(source.TextOf(n, "type_url"))
	})
}

// isLimiterType reports whether a message is one of Envoy's limiters, by its name.
func isLimiterType(typeName string) bool {
	return strings.Contains(typeName, "ratelimit") || strings.Contains(typeName, "rate_limit")
}
