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
