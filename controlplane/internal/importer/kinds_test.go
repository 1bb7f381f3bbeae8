package importer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

// What the cases have in common: a filter that limits a tier, the routes that
// say what a tier is, and both as the parts of Envoy that hold them.
const (
	localType = `"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit`
	on        = `filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}, rate_limited_as_resource_exhausted: true`
	tierLimit = `stat_prefix: all, ` + on + `, token_bucket: {max_tokens: 900, tokens_per_fill: 900, fill_interval: 1s},
    descriptors: [{entries: [{key: tier, value: free}], token_bucket: {max_tokens: 7, tokens_per_fill: 7, fill_interval: 60s}}]`
	tierRoutes = `name: web, virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: c,
    rate_limits: [{actions: [{request_headers: {header_name: x-plan-tier, descriptor_key: tier}}]}]}}]}]`
	tierListener = `name: front, filter_chains: [{filters: [{name: hcm, typed_config: {stat_prefix: in, rds: {route_config_name: web, config_source: {ads: {}}},
    http_filters: [{name: local, typed_config: {` + localType + `, ` + tierLimit + `}}]}}]}]`
	serviceListener = `name: front, filter_chains: [{filters: [{name: hcm, typed_config: {stat_prefix: in, rds: {route_config_name: web, config_source: {ads: {}}},
    http_filters: [{name: global, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: shop}}]}}]}]`
	tierDomain = "domain: shop\ndescriptors: [{key: tier, value: free, rate_limit: {unit: minute, requests_per_unit: 7}}]"
	tierRule   = "match: {headers: {x-plan-tier: free}}\n"
)

// dump is Envoy's /config_dump of a listener and of routes apart from it.
func dump(listener string) string {
	return `{configs: [{dynamic_listeners: [{name: front, active_state: {listener: {` + listener + `}},
  draining_state: {listener: {` + listener + `}}}]}, {dynamic_route_configs: [{route_config: {` + tierRoutes + `}}]}]}`
}

func routesFile(text string) *importer.File {
	return &importer.File{Name: "r.yaml", Text: []byte(text)}
}

func TestRoutesApartFromTheirListener(t *testing.T) {
	for name, run := range map[string]func() (importer.Imported, error){
		"beside a listener": func() (importer.Imported, error) {
			return filter("{"+tierListener+"}", importer.Options{Routes: routesFile("{" + tierRoutes + "}")})
		},
		"of another name": func() (importer.Imported, error) {
			return filter("{"+tierListener+"}", importer.Options{Routes: routesFile("{" + strings.Replace(tierRoutes, "web", "www", 1) + "}")})
		},
		"beside a filter": func() (importer.Imported, error) {
			return filter("{"+tierLimit+"}", importer.Options{Routes: routesFile("{" + tierRoutes + "}")})
		},
		"in a dump": func() (importer.Imported, error) { return filter(dump(tierListener), importer.Options{}) },
		"in a dump, by name": func() (importer.Imported, error) {
			return filter(dump(tierListener), importer.Options{Listener: "front"})
		},
		"of a service": func() (importer.Imported, error) {
			return service(tierDomain, importer.Options{Routes: routesFile(dump(serviceListener))})
		},
		"beside routes of others": func() (importer.Imported, error) {
			return service(tierDomain, importer.Options{Routes: routesFile("[" + dump(serviceListener) + ", {" + strings.Replace(tierRoutes, "name: web", "name: x", 1) + "}]")})
		},
		"of a service, by name": func() (importer.Imported, error) {
			return service(tierDomain, importer.Options{Listener: "front", Routes: routesFile(dump(serviceListener))})
		},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := run()
			require.NoError(t, err)
			require.Contains(t, string(made.Policy), tierRule)
		})
	}
	made, err := filter("{"+tierListener+"}", importer.Options{})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "The routes web of the listener front are not in this file")
	made, err = filter("{"+strings.Replace(tierListener, `rds: {route_config_name: web, config_source: {ads: {}}}`, "route_config: {"+tierRoutes+"}", 1)+"}",
		importer.Options{Routes: routesFile("{" + tierRoutes + "}")})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "r.yaml: nothing is made of these routes")
}

func TestEachSiteHasAName(t *testing.T) {
	of := func(name string) string { return strings.Replace(tierRoutes, "name: web", "name: "+name, 1) }
	_, err := service(tierDomain, importer.Options{Routes: routesFile("[{" + of("a") + "}, {" + of("b") + "}]")})
	var choices *importer.Choices
	require.ErrorAs(t, err, &choices)
	require.Equal(t, []string{"a", "b"}, choices.Names)
	made, err := service(tierDomain, importer.Options{Listener: "b", Routes: routesFile("[{" + of("a") + "}, {" + of("b") + "}]")})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), tierRule)

	// Two chains of one listener, as for two ports of one workload.
	chains := strings.Replace(tierListener, "name: front, ", "", 1)
	other := strings.Replace(strings.Replace(chains, "route_config_name: web", "route_config_name: w2", 1), "max_tokens: 7", "max_tokens: 8", 1)
	two := "{name: front, a: {" + chains + "}, filter_chains: [], b: {" + other + "}}"
	two = strings.ReplaceAll(two, "{filter_chains: [{filters", "{x: [{filters")
	_, err = filter(two, importer.Options{})
	require.ErrorAs(t, err, &choices)
	require.Equal(t, []string{"front/web", "front/w2"}, choices.Names)
	made, err = filter(two, importer.Options{Listener: "front/w2"})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "burst: 8")
	_, err = filter(two, importer.Options{Listener: "back"})
	require.EqualError(t, err, `there is no listener "back" with rate limits`)
}

const envoyFilter = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: limits}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND}
    patch:
      operation: INSERT_BEFORE
      value: {name: local, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct,
        type_url: type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, value: {stat_prefix: room}}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: actions}
spec:
  configPatches:
  - applyTo: HTTP_ROUTE
    match: {context: SIDECAR_INBOUND, routeConfiguration: {vhost: {name: VHOST, route: {PICK}}}}
    patch: {operation: MERGE, value: {VALUE}}
`

var patch = `route: {rate_limits: [{actions: [{request_headers: {header_name: x-plan-tier, descriptor_key: tier}}]}]},
    typed_per_filter_config: {local: {` + localType + `, ` + tierLimit + `}}`

func TestResourcesAndExcerptsAreRead(t *testing.T) {
	istio := func(vhost, route string) string {
		return strings.NewReplacer("VHOST", vhost, "PICK", route, "VALUE", patch).Replace(envoyFilter)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"EnvoyFilters":    {istio(`"inbound|http|80"`, "action: ANY"), tierRule},
		"of one host":     {istio("pay.example:443", "action: ANY"), "match: {hosts: [pay.example], headers: {x-plan-tier: free}}\n"},
		"of one route":    {istio(`"inbound|http|80"`, "name: charge"), `mode: "off"`},
		"in a list":       {"kind: List\nitems: [{" + strings.ReplaceAll("kind: EnvoyFilter, spec: {configPatches: [{applyTo: VIRTUAL_HOST, patch: {value: {rate_limits: [{actions: [{request_headers: {header_name: x-plan-tier, descriptor_key: tier}}]}]}}}, {applyTo: HTTP_FILTER, patch: {value: {typed_config: {"+localType+", "+tierLimit+"}}}}]}", "\n", " ") + "}]", tierRule},
		"routes given":    {"kind: EnvoyFilter\nspec: {configPatches: [{applyTo: HTTP_FILTER, patch: {value: {typed_config: {" + localType + ", " + tierLimit + "}}}}]}", tierRule},
		"a patch's value": {"{" + patch + "}", tierRule},
		"a route":         {"{match: {prefix: /}, " + patch + "}", tierRule},
		"routes":          {"[{match: {path: /a}, route: {cluster: c}}, {match: {prefix: /}, " + patch + "}]", "exempt:\n      - {paths: [/a]}"},
		"a virtual host":  {"{domains: [a.example], routes: [{match: {prefix: /}, " + patch + "}]}", "hosts: [a.example], headers: {x-plan-tier: free}"},
	} {
		t.Run(name, func(t *testing.T) {
			o := importer.Options{}
			if name == "routes given" {
				o.Routes = routesFile("{" + tierRoutes + "}")
			}
			made, err := filter(tt.text, o)
			require.NoError(t, err)
			require.Contains(t, string(made.Policy), tt.want)
			require.Contains(t, string(made.Policy), "{requests: 7, per: 1m}")
		})
	}
}

// All policies of all files become rules; other limits beside them, and options that
// change nothing, are errors.
func TestBackendTrafficPolicies(t *testing.T) {
	policyOf := func(name, spec string) string {
		return "kind: BackendTrafficPolicy\nmetadata: {name: " + name + "}\nspec: {" + spec + "rateLimit: {global: {rules: [{limit: {requests: 3, unit: Day}}]}}}\n"
	}
	const ofService = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n"
	read := func(o importer.Options, texts ...string) (importer.Imported, error) {
		var files []importer.File
		for i, text := range texts {
			files = append(files, importer.File{Name: string(rune('a'+i)) + ".yaml", Text: []byte(text)})
		}
		return importer.EnvoyRatelimit(files, o)
	}
	made, err := read(importer.Options{}, policyOf("one", ""), policyOf("two", "targetSelectors: [{matchLabels: {app: x}}], ")+"---\n"+policyOf("three", ""))
	require.NoError(t, err)
	for _, want := range []string{"name: one-1", "name: two-1", "name: three-1", "b.yaml:3: the BackendTrafficPolicy is for what its targetSelectors select alone"} {
		require.Contains(t, string(made.Policy)+fmt.Sprint(made.Notes), want)
	}
	for _, mixed := range [][]string{{policyOf("one", ""), ofService}, {ofService, policyOf("one", "")}, {policyOf("one", "") + "---\n" + ofService}} {
		_, err := read(importer.Options{}, mixed...)
		require.ErrorContains(t, err, "is no BackendTrafficPolicy, and others are: import each kind by itself")
	}
	_, err = filter("kind: EnvoyFilter\nspec: {}\n---\n"+policyOf("one", ""), importer.Options{})
	require.ErrorContains(t, err, "is no BackendTrafficPolicy")
	for _, o := range []importer.Options{{Listener: "x"}, {Routes: &importer.File{Name: "r.yaml"}}} {
		_, err := read(o, policyOf("one", ""))
		require.ErrorContains(t, err, "leave out --routes and --listener")
	}
	_, err = read(importer.Options{Keys: map[string]string{"nope": "path"}}, policyOf("one", ""))
	require.ErrorContains(t, err, "nope")
}

func TestBadBackendTrafficPolicy(t *testing.T) {
	for text, want := range map[string]string{
		"limit: {requests: 3, unit: Day}, clientSelectors: [{methods: [{value: get}]}]":                     `methods[0].value: must be a method such as GET, not "get"`,
		"limit: {requests: 3, unit: Day}, clientSelectors: [{headers: [{name: a b}]}]":                      `headers[0].name: must be the name of a header, not "a b"`,
		"limit: {requests: 3, unit: Day}, clientSelectors: [{path: {type: RegularExpression, value: '('}}]": `path.value: must be an expression of RE2, not "("`,
		"limit: {requests: 3, unit: Day}, clientSelectors: [{path: {type: Suffix, value: a}}]":              `path.type: must be Exact, Distinct, PathPrefix or RegularExpression, not "Suffix"`,
		"shadowMode: true":                      "rules[0]: a rule needs a limit",
		"limit: {requests: 3, unit: Fortnight}": `rules[0].limit.unit: must be Second, Minute, Hour, Day, Week, Month or Year, not "Fortnight"`,
		"limit: {requests: 3, unit: Second}, clientSelectors: [{headrs: []}]":                       `rules[0].clientSelectors[0].headrs: unknown field: did you mean "headers"?`,
		"limit: {requests: 3, unit: Second}, clientSelectors: [{sourceCIDR: {value: 10.0.0.0/33}}]": `rules[0].clientSelectors[0].sourceCIDR.value: must be a network such as 10.0.0.0/8, not "10.0.0.0/33"`,
	} {
		_, err := filter("kind: BackendTrafficPolicy\nspec: {rateLimit: {type: Local, local: {rules: [{"+text+"}]}}}", importer.Options{})
		require.ErrorContains(t, err, want)
	}
}

func TestFilesOfAnotherKind(t *testing.T) {
	for text, want := range map[string]struct{ service, filter string }{
		"apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nspec: {limits: {}}": {
			"c.yaml:1:1: this is a RateLimitPolicy (kuadrant.io/v1), which the import does not read: write its limits as rules of a policy",
			"f.yaml:1:1: this is a RateLimitPolicy (kuadrant.io/v1), which the import does not read: write its limits as rules of a policy"},
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rl}\ndata: {config.yaml: 'domain: d'}": {
			`c.yaml:1:1: this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap rl -o 'jsonpath={.data.config\.yaml}'`,
			`f.yaml:1:1: this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap rl -o 'jsonpath={.data.config\.yaml}'`},
		"version: 1\nrules: []":  {"c.yaml:1:1: this is a policy already: sluice validate reads it", "f.yaml:1:1: this is a policy already: sluice validate reads it"},
		one:                      {"", "f.yaml:1:1: this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit"},
		"{" + tierListener + "}": {"c.yaml:1:1: this is a configuration of Envoy: give it as --routes, beside the configuration of envoyproxy/ratelimit, or to sluice import local-ratelimit", ""},
		strings.NewReplacer("VHOST", "a", "PICK", "", "VALUE", patch).Replace(envoyFilter): {
			"c.yaml:1:1: this is an EnvoyFilter: give it as --routes, beside the configuration of envoyproxy/ratelimit, or to sluice import local-ratelimit", ""},
		"{" + serviceListener + "}": {"", "there is no rate limit in it: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to sluice import envoy-ratelimit, and this file as --routes"},
		"{" + tierRoutes + "}":      {"", "there is no rate limit in it: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to sluice import envoy-ratelimit, and this file as --routes"},
		"name: n\ntyped_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit}": {
			"", "there is no rate limit in it: envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit is not read"},
	} {
		if want.service != "" {
			_, err := service(text, importer.Options{})
			require.EqualError(t, err, want.service)
		}
		if want.filter != "" {
			_, err := filter(text, importer.Options{})
			require.EqualError(t, err, want.filter)
		}
	}
}

// A typo never becomes a default: it is told in the words of the file.
func TestTypos(t *testing.T) {
	for text, want := range map[string]string{
		"token_buckt: {max_tokens: 1, fill_interval: 1s}\nstat_prefix: a":                                   `f.yaml:1:1: token_buckt: unknown field: did you mean "token_bucket"?`,
		"token_bucket: {max_tokens: 10, tokensPerFil: 10, fill_interval: 1s}":                               `f.yaml:1:32: token_bucket.tokensPerFil: unknown field: did you mean "tokensPerFill"?`,
		"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{request_header: {header_name: a}}]}]":     `f.yaml:2:27: rate_limits[0].actions[0].request_header: unknown field: did you mean "request_headers"?`,
		"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{request_headers: {header_name: X Y}}]}]":  `f.yaml:2:58: rate_limits[0].actions[0].request_headers.header_name: must be the name of a header, not "X Y"`,
		"virtual_hosts: [{domains: ['*'], routes: [{match: {prefix: /}, route: {rate_limit: []}}]}]":        `f.yaml:1:72: rate_limit: unknown field: did you mean "rate_limits"?`,
		"static_resources: {listener: [{filter_chains: [{filters: [{typed_config: {http_filter: []}}]}]}]}": `f.yaml:1:75: http_filter: unknown field: did you mean "http_filters"?`,
	} {
		_, err := filter(text, importer.Options{})
		require.EqualError(t, err, want)
	}
	_, err := service(strings.Replace(one, "day", "Dya", 1), importer.Options{})
	require.ErrorContains(t, err, `not "Dya"`)
	_, err = service(strings.Replace(one, "requests_per_unit", "request_per_unit", 1), importer.Options{})
	require.ErrorContains(t, err, `unknown field: did you mean "requests_per_unit"?`)
	_, err = service(one, importer.Options{Keys: map[string]string{"aa": "header:x"}})
	require.EqualError(t, err, "no descriptor has the key aa of --key")
}
