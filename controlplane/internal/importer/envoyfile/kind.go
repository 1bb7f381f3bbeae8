package envoyfile

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ofEnvoy are fields that a configuration of Envoy, or a part of it, begins with.
var ofEnvoy = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// RefuseForService rejects a file that is not a configuration of envoyproxy/ratelimit: it says what the file
// is, and what to do.
//
//	the file is                               RefuseForService   refuseForEnvoy
//	a configuration of envoyproxy/ratelimit                      rejects it
//	one of Envoy, a part of it, EnvoyFilter   rejects it
//	ConfigMap, another resource, a policy     rejects it         rejects it
//	BackendTrafficPolicy, List                                               package gateway reads the first
func RefuseForService(to *draft.Findings, in *source.Document) {
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

// refuseForEnvoy rejects a file that is not a configuration of Envoy, as RefuseForService does.
func refuseForEnvoy(to *draft.Findings, in *source.Document) {
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
