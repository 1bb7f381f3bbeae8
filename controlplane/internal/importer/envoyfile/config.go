package envoyfile

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Config is the configuration of a filter, which is decoded when it is needed.
type Config struct {
	Name     string // of the filter
	TypeName string // of its message
	Node     *policy.Node
	At       source.Place
	Disabled bool
}

// ConfigAt finds the configuration in a typed_config, which may be in a TypedStruct or in a
// FilterConfig of a route.
func ConfigAt(name string, n *policy.Node, at source.Place) Config {
	typeName := typeOf(source.TextOf(n, "@type"))
	switch {
	case strings.HasSuffix(typeName, ".TypedStruct"):
		typeName = typeOf(source.TextOf(n, "type_url"))
		return Config{Name: name, TypeName: typeName, Node: source.FieldOf(n, "value"), At: at.In("value")}
	case strings.HasSuffix(typeName, ".FilterConfig") && source.TextOf(n, "disabled") == "true":
		return Config{Name: name, Disabled: true} // Envoy ignores its config
	case strings.HasSuffix(typeName, ".FilterConfig"):
		return ConfigAt(name, source.FieldOf(n, "config"), at.In("config"))
	}
	return Config{Name: name, TypeName: typeName, Node: n, At: at}
}

// typeOf is the name of a message in an address of its type.
func typeOf(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// IsA reports whether a configuration is of a message type.
func IsA[M proto.Message](c Config) bool {
	var m M
	return c.Node != nil && c.TypeName == string(m.ProtoReflect().Descriptor().FullName())
}

// ConfigsPerRoute lists the configurations of filters that a route or virtual host has.
func ConfigsPerRoute(n *policy.Node, at source.Place) (list []Config) {
	configs := source.FieldOf(n, "typed_per_filter_config")
	if configs == nil {
		return nil
	}
	at = at.In("typed_per_filter_config")
	for _, f := range configs.Fields {
		its := at
		its.Path += "[" + strconv.Quote(f.Name) + "]"
		list = append(list, ConfigAt(f.Name, f.Value, its))
	}
	return list
}

// The messages of Envoy's filters.
const (
	LocalType   = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
	ServiceType = "envoy.extensions.filters.http.ratelimit.v3.RateLimit"
)
