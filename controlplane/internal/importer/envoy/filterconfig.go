package envoy

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// filterConfig is the configuration of a filter, which is decoded when it is needed.
type filterConfig struct {
	name     string // of the filter
	typeName string // of its message
	node     *policy.Node
	at       source.Place
	disabled bool
}

// filterConfigAt finds the configuration in a typed_config, which may be in a TypedStruct or in a
// FilterConfig of a route.
func filterConfigAt(name string, n *policy.Node, at source.Place) filterConfig {
	typeName := typeOf(source.TextOf(n, "@type"))
	switch {
	case strings.HasSuffix(typeName, ".TypedStruct"):
		typeName = typeOf(source.TextOf(n, "type_url"))
		return filterConfig{name: name, typeName: typeName, node: source.FieldOf(n, "value"), at: at.In("value")}
	case strings.HasSuffix(typeName, ".FilterConfig") && source.TextOf(n, "disabled") == "true":
		return filterConfig{name: name, disabled: true} // Envoy ignores its config
	case strings.HasSuffix(typeName, ".FilterConfig"):
		return filterConfigAt(name, source.FieldOf(n, "config"), at.In("config"))
	}
	return filterConfig{name: name, typeName: typeName, node: n, at: at}
}

// typeOf is the name of a message in an address of its type.
func typeOf(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// isA reports whether a configuration is of a message type.
func isA[M proto.Message](c filterConfig) bool {
	var m M
	return c.node != nil && c.typeName == string(m.ProtoReflect().Descriptor().FullName())
}

// decodeFirst decodes the first of these configurations that is an M; nil if none is.
func decodeFirst[M proto.Message](r *reader, list []filterConfig) (m M, at source.Place) {
	i := slices.IndexFunc(list, isA[M])
	if i < 0 {
		return m, source.Place{}
	}
	return decode[M](r, list[i].node, list[i].at), list[i].at
}

// configsPerRoute lists the configurations of filters that a route or virtual host has.
func configsPerRoute(n *policy.Node, at source.Place) (list []filterConfig) {
	configs := source.FieldOf(n, "typed_per_filter_config")
	if configs == nil {
		return nil
	}
	at = at.In("typed_per_filter_config")
	for _, f := range configs.Fields {
		its := at
		its.Path += "[" + strconv.Quote(f.Name) + "]"
		list = append(list, filterConfigAt(f.Name, f.Value, its))
	}
	return list
}
