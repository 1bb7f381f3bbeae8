package envoy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/gateway"
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
	case isOfEnvoy(n), kind == gateway.Kind, kind == "List":
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
	case hasActions, strings.HasPrefix(unread, serviceTypeName):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", draft.ErrNothing)
	case unread != "":
		return fmt.Errorf("%w: %s is not read", draft.ErrNothing, unread)
	}
	return nil
}
