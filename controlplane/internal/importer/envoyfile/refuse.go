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

// fileKind is what a file is, by its telling resource. An import reads unknown ones, and says what is wrong in them.
type fileKind uint8

const (
	unknown   fileKind = iota
	ofEnvoy            // a configuration of Envoy, or a part of one
	ofIstio            // an EnvoyFilter
	ofService          // a configuration of envoyproxy/ratelimit
	unread             // no import of Envoy's limiters reads it
)

// beginsWith are fields that a configuration of Envoy, or a part of it, begins with.
var beginsWith = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// kindOf says what a file is; of an unread one, also what that is and what to do.
func kindOf(in *source.Document) (is fileKind, unreadAs string) {
	n := tellingResource(in)
	has := func(name string) bool { return source.FieldOf(n, name) != nil }
	switch kind := source.TextOf(n, "kind"); kind {
	case "": // it is no resource of Kubernetes
	case "EnvoyFilter":
		return ofIstio, ""
	case source.TrafficPolicy, "List": // package gateway reads the first. A List has nothing in it
		return unknown, ""
	case "ConfigMap":
		return unread, `this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap NAME ` +
			`-o 'jsonpath={.data.FILE\.yaml}'`
	default:
		return unread, "this is a " + draft.Clip(kind, 100) + " (" + draft.Clip(source.TextOf(n, "api_version"), 100) +
			"), which the import does not read: write its limits as rules of a policy"
	}
	switch {
	case slices.ContainsFunc(beginsWith, has):
		return ofEnvoy, ""
	case has("rules") && has("version"):
		return unread, "this is a policy already: sluice validate reads it"
	case has("domain") && has("descriptors"):
		return ofService, ""
	}
	return unknown, ""
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
	switch kind, unreadAs := kindOf(in); kind {
	case ofEnvoy:
		to.Fail(in.Top(), "this is a configuration of Envoy"+routes)
	case ofIstio:
		to.Fail(in.Top(), "this is an EnvoyFilter"+routes)
	case unread:
		to.Fail(in.Top(), unreadAs)
	case ofService, unknown:
	}
}

// refuseForEnvoy rejects a file that is not a configuration of Envoy, as RefuseForService does.
func refuseForEnvoy(to *draft.Findings, in *source.Document) {
	switch kind, unreadAs := kindOf(in); kind {
	case ofService:
		to.Fail(in.Top(), "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit")
	case unread:
		to.Fail(in.Top(), unreadAs)
	case ofEnvoy, ofIstio, unknown:
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

// RefuseTypos rejects unknown fields anywhere in a file whose names resemble one that leads to limits.
func RefuseTypos(to *draft.Findings, in *source.Document) { refuseTyposBelow(to, in.Root, in.Top()) }

func refuseTyposBelow(to *draft.Findings, n *policy.Node, at source.Place) {
	refuseTypos(to, n, at, limitFields)
	for i, item := range n.Items {
		refuseTyposBelow(to, item, at.ItemAt(i))
	}
	for _, f := range n.Fields {
		refuseTyposBelow(to, f.Value, at.In(f.Name))
	}
}

// refuseTypos rejects unknown fields of an object whose names resemble a known one. A name that is longer or shorter by
// more than a letter is taken for another field of Envoy.
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

// WhyNothing says why there is no rate limit in a file: there may be a filter that the import does not read. If it
// knows no reason it is nil: then Draft.Finish returns ErrNothing, without one.
func WhyNothing(in *source.Document) error {
	limiter := "" // the type of the last one
	source.Walk(in.Root, func(n *policy.Node) {
		if t := typeOf(source.TextOf(n, "@type")); isLimiterType(t) {
			limiter = t
		}
	})
	switch {
	case hasRateLimits(in.Root), strings.HasPrefix(limiter, ServiceType):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", draft.ErrNothing)
	case limiter != "":
		return fmt.Errorf("%w: %s is not read", draft.ErrNothing, limiter)
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
