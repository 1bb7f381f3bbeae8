package envoyfile

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
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
