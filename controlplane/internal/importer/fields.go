package importer

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// partly lists the messages of which only some fields are about limits.
var partly = map[protoreflect.FullName]string{
	"envoy.config.route.v3.RouteConfiguration": "virtual_hosts",
	"envoy.config.route.v3.VirtualHost":        "domains rate_limits routes",
	"envoy.config.route.v3.Route":              "match route",
	"envoy.config.route.v3.RouteAction":        "rate_limits include_vh_rate_limits",
	"envoy.config.core.v3.HeaderValueOption":   "header",
}

// notTranslated lists the fields that have no equal in a policy, with a note
// that says so. Those that say nothing about limits have an empty note.
var notTranslated = map[protoreflect.FullName]string{
	localFilter + "request_headers_to_add_when_not_enforced": "no header marks requests that a shadow rule would deny",

	serviceFilter + "failure_mode_deny":                  noFailure,
	serviceFilter + "failure_mode_deny_percent":          noFailure,
	serviceFilter + "status_on_error":                    noFailure,
	serviceFilter + "metadata_namespace":                 "a limit has no metadata here",
	serviceFilter + "disable_x_envoy_ratelimited_header": "a denial has x-envoy-ratelimited",
	serviceFilter + "rate_limit_service":                 "",
	servicePerRoute + "override_option": "the rate_limits of a route go before those of its virtual " +
		"host",

	rateLimit + "disable_key":        "no runtime key switches a rule off: use mode",
	rateLimit + "x_ratelimit_option": "a response's fields show all rules that match",

	"envoy.config.core.v3.HeaderValue.raw_value": "a denial's header has its value as text",
}

// The prefixes of the fields of Envoy's filters and of rate_limits.
const (
	localFilter     = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit."
	serviceFilter   = "envoy.extensions.filters.http.ratelimit.v3.RateLimit."
	servicePerRoute = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute."
	rateLimit       = "envoy.config.route.v3.RateLimit."

	noFailure = "no service can fail here. on_error of a rule says what happens when a call into Envoy fails"
)

// skipped reports whether a field is not decoded, and what is noted of it.
// Maps and messages of any type are read where they stand.
func skipped(fd protoreflect.FieldDescriptor) (note string, skip bool) {
	if note, skip := notTranslated[fd.FullName()]; skip {
		return note, true
	}
	if names, ok := partly[fd.Parent().FullName()]; ok && !slices.Contains(strings.Fields(names), string(fd.Name())) {
		return "", true
	}
	return "", fd.IsMap() || fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Any"
}

// fieldOf is the value of an object's field by its name in protocol buffers, also where it is
// written as in their JSON, or of a field in it, and so on; nil if it is absent or null.
func fieldOf(n *policy.Node, names ...string) *policy.Node {
	for _, name := range names {
		if n == nil {
			break
		}
		at := slices.IndexFunc(n.Fields, func(f policy.Field) bool { return isField(f.Name, name) && f.Value.Kind != policy.Null })
		if at < 0 {
			return nil
		}
		n = n.Fields[at].Value
	}
	return n
}

// textOf is the text of such a field.
func textOf(n *policy.Node, names ...string) string {
	if v := fieldOf(n, names...); v != nil {
		return v.Text
	}
	return ""
}

// itemsOf are the items of such a field.
func itemsOf(n *policy.Node, names ...string) []*policy.Node {
	if v := fieldOf(n, names...); v != nil {
		return v.Items
	}
	return nil
}

// isField reports whether a field is written in one of the two ways.
func isField(written, name string) bool {
	return written == name || strings.EqualFold(written, strings.ReplaceAll(name, "_", ""))
}
