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

// fileKind is what a file is, by the resource that tells it.
type fileKind uint8

// The kinds of files, and which imports read them:
//
//	                                               of envoyproxy/ratelimit    of Envoy
//	serviceConfig                                  reads it                   rejects it
//	envoyConfig, envoyFilter                       rejects it                 reads it
//	configMap, otherResource, ownPolicy            rejects it                 rejects it
//	readElsewhere                                  package gateway reads the first. A List has nothing in it
//	unknownKind                                    the reader says what is wrong in it
const (
	unknownKind   fileKind = iota
	serviceConfig          // a configuration of envoyproxy/ratelimit
	envoyConfig            // a configuration of Envoy, or a part of one
	envoyFilter            // of Istio
	readElsewhere          // BackendTrafficPolicy, or a List of Kubernetes
	configMap              // of Kubernetes
	otherResource          // of Kubernetes
	ownPolicy              // a policy of sluice
)

// ofEnvoy are fields that a configuration of Envoy, or a part of it, begins with.
var ofEnvoy = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// kindOf is the kind of a file with a resource.
func kindOf(n *policy.Node) fileKind {
	has := func(name string) bool { return source.FieldOf(n, name) != nil }
	switch source.TextOf(n, "kind") {
	case "":
	case "EnvoyFilter":
		return envoyFilter
	case source.TrafficPolicy, "List":
		return readElsewhere
	case "ConfigMap":
		return configMap
	default:
		return otherResource
	}
	switch {
	case slices.ContainsFunc(ofEnvoy, has):
		return envoyConfig
	case has("rules") && has("version"):
		return ownPolicy
	case has("domain") && has("descriptors"):
		return serviceConfig
	}
	return unknownKind
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
	switch kind := kindOf(n); kind {
	case envoyConfig:
		to.Fail(in.Top(), "this is a configuration of Envoy"+routes)
	case envoyFilter:
		to.Fail(in.Top(), "this is an EnvoyFilter"+routes)
	case configMap, otherResource, ownPolicy:
		to.Fail(in.Top(), whyUnread(kind, n))
	case serviceConfig, readElsewhere, unknownKind:
	}
}

// refuseForEnvoy rejects a file that is not a configuration of Envoy, as RefuseForService does.
func refuseForEnvoy(to *draft.Findings, in *source.Document) {
	n := tellingResource(in)
	switch kind := kindOf(n); kind {
	case serviceConfig:
		to.Fail(in.Top(), "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit")
	case configMap, otherResource, ownPolicy:
		to.Fail(in.Top(), whyUnread(kind, n))
	case envoyConfig, envoyFilter, readElsewhere, unknownKind:
	}
}

// whyUnread says what a file with a resource is that neither import reads, and what to do.
func whyUnread(kind fileKind, n *policy.Node) string {
	switch kind {
	case configMap:
		return `this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap NAME ` +
			`-o 'jsonpath={.data.FILE\.yaml}'`
	case ownPolicy:
		return "this is a policy already: sluice validate reads it"
	default:
		return "this is a " + draft.Clip(source.TextOf(n, "kind"), 100) + " (" +
			draft.Clip(source.TextOf(n, "api_version"), 100) +
			"), which the import does not read: write its limits as rules of a policy"
	}
}

// limitFields are the fields that lead to the limits of a configuration of Envoy.
var limitFields = []string{
	"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
	"typed_per_filter_config", "virtual_hosts",
}

// RefuseTyposOfLimits rejects unknown fields anywhere in a file whose names resemble a field that leads to limits.
func RefuseTyposOfLimits(to *draft.Findings, in *source.Document) {
	source.Walk(in.Root, func(n *policy.Node) { RefuseTypos(to, n, in.Top(), limitFields) })
}

// WhyNothing says why there is no rate limit in a file without typos: a filter that the import does not read. If it
// knows no reason it is nil: then Draft.Finish returns ErrNothing, without one.
func WhyNothing(in *source.Document) error {
	unread := ""
	source.Walk(in.Root, func(n *policy.Node) {
		if t := typeOf(source.TextOf(n, "@type")); isOfLimits(t) {
			unread = t
		}
	})
	hasActions := source.Contains(in.Root, func(n *policy.Node) bool { return source.FieldOf(n, "rate_limits") != nil })
	switch {
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
func RefuseTypos(to *draft.Findings, n *policy.Node, at source.Place, known []string) {
	for _, f := range n.Fields {
		near := message.Nearest(f.Name, known)
		isKnown := slices.ContainsFunc(known, func(name string) bool { return source.IsField(f.Name, name) })
		difference := len(near) - len(f.Name)
		if near != "" && !isKnown && -1 <= difference && difference <= 1 {
			to.Fail(at.In(f.Name), `unknown field: did you mean "`+near+`"?`)
		}
	}
}
