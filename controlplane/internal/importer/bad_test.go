package importer_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

const one = "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n"

func service(text string, o importer.Options) (importer.Imported, error) {
	return importer.EnvoyRatelimit([]importer.File{{Name: "c.yaml", Text: []byte(text)}}, o)
}

func filter(text string, o importer.Options) (importer.Imported, error) {
	return importer.LocalRatelimit(importer.File{Name: "f.yaml", Text: []byte(text)}, o)
}

func TestBadConfigurationOfTheService(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"empty":            {" \n", "c.yaml: the file is empty"},
		"no YAML":          {"domain: d\ndescriptors: [", "c.yaml:2: invalid YAML: did not find expected node content: a value is missing, a bracket is not closed, or text must be in quotes"},
		"a list":           {"- a", "c.yaml:1:3: must be an object, not text"},
		"no domain":        {"descriptors: []", "c.yaml:1:1: domain: the file needs a domain"},
		"no key":           {"domain: d\ndescriptors:\n  - value: a\n", "c.yaml:3:5: descriptors[0].key: a descriptor needs a key"},
		"bad unit":         {"domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: fortnight, requests_per_unit: 1}", `c.yaml:4:24: descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or year, not "fortnight"`},
		"no unit":          {"domain: d\ndescriptors:\n  - key: a\n    rate_limit: {requests_per_unit: 1}", `c.yaml:4:17: descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or year, not ""`},
		"unit, unlimited":  {"domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unlimited: true, unit: day}", "c.yaml:4:41: descriptors[0].rate_limit.unit: does not go with unlimited: keep one of the two"},
		"negative":         {"domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: -1}", `c.yaml:4:48: descriptors[0].rate_limit.requests_per_unit: must be a whole number from 0 to 4294967295, not "-1"`},
		"twice":            {one + "  - key: a\n", "c.yaml:5:5: descriptors[1]: the descriptor a is given twice, which envoyproxy/ratelimit refuses: keep one"},
		"field twice":      {"domain: d\ndomain: e\ndescriptors: []", "c.yaml:2:1: domain: is given twice: keep one"},
		"not a list":       {"domain: d\ndescriptors: {key: a}", "c.yaml:2:14: descriptors: must be a list, not an object"},
		"not objects":      {"domain: d\ndescriptors: [a]", "c.yaml:2:15: descriptors[0]: must be an object, not text"},
		"not a truth":      {"domain: d\ndescriptors: [{key: a, shadow_mode: maybe}]", "c.yaml:2:37: descriptors[0].shadow_mode: must be true or false, not \"maybe\""},
		"replaces itself":  {"domain: d\ndescriptors:\n  - key: a\n    rate_limit: {name: n, unit: day, requests_per_unit: 1, replaces: [{name: n}]}", "c.yaml:4:78: descriptors[0].rate_limit.replaces[0].name: a limit cannot replace itself"},
		"share, no *":      {"domain: d\ndescriptors: [{key: a, share_threshold: true}]", "c.yaml:2:41: descriptors[0].share_threshold: needs a value with a *"},
		"control":          {"domain: d\ndescriptors: [{key: a, value: \"a\\nb\"}]", "c.yaml:2:31: descriptors[0].value: holds a control character, and a policy may hold none"},
		"bad domain":       {"domain: ' d'\ndescriptors: []", "c.yaml:1:9: domain: must be at most 128 bytes, without control characters and spaces at its ends"},
		"too many for one": {one + manyValues(), "c.yaml:4:17: a makes a rule with 1001 overrides, the maximum is 1000: import fewer values, or fewer with a limit of their own"},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := service(tt.text, importer.Options{})
			var problems policyfile.Errors
			require.ErrorAs(t, err, &problems)
			require.Equal(t, tt.want, problems.Error())
			require.Empty(t, made.Policy)
		})
	}
}

func manyValues() string {
	var b strings.Builder
	for i := range 1001 {
		b.WriteString("  - {key: a, value: v" + strings.Repeat("x", i) + "}\n")
	}
	return b.String()
}

func TestBadConfigurationOfTheFilter(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"bad interval":   {"token_bucket: {max_tokens: 1, fill_interval: 10}", `f.yaml:1:46: token_bucket.fill_interval: must be a duration in seconds, such as 60s, not "10"`},
		"short interval": {"token_bucket: {max_tokens: 1, fill_interval: 0.01s}", `f.yaml:1:46: token_bucket.fill_interval: must be a duration in seconds from 0.05s to 366d, such as 60s`},
		"bad number":     {"token_bucket: {max_tokens: many}", `f.yaml:1:28: token_bucket.max_tokens: must be a whole number from 0 to 4294967295, not "many"`},
		"bad fraction":   {"token_bucket: {max_tokens: 0}\nfilter_enabled: {default_value: {denominator: TEN}}", "f.yaml:2:47: filter_enabled.default_value.denominator: must be HUNDRED, TEN_THOUSAND or MILLION, not \"TEN\""},
		"no header":      {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{request_headers: {descriptor_key: a}}]}]", "f.yaml:2:44: rate_limits[0].actions[0].request_headers.header_name: request_headers needs a header_name"},
		"bad header":     {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{request_headers: {header_name: a b}}]}]", `f.yaml:2:58: rate_limits[0].actions[0].request_headers.header_name: must be the name of a header, not "a b"`},
		"bad regex":      {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{header_value_match: {headers: [{name: a, safe_regex_match: {regex: '('}}]}}]}]", `f.yaml:2:94: rate_limits[0].actions[0].header_value_match.headers[0].safe_regex_match.regex: must be an expression of RE2, not "("`},
		"no metadata":    {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{metadata: {metadata_key: {path: []}}}]}]", "f.yaml:2:52: rate_limits[0].actions[0].metadata.metadata_key: must have a key, and so must each segment of its path"},
		"bad answer":     {"token_bucket: {max_tokens: 0}\nresponse_headers_to_add: [{header: {key: a b}}]", `f.yaml:2:36: response_headers_to_add[0].header: must have the name of a header as key, not "a b"`},
		"bad status":     {"token_bucket: {max_tokens: 0}\nstatus: {code: 1000}", "f.yaml:2:16: status.code: must be at most 599"},
		"long prefix":    {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{masked_remote_address: {v4_prefix_mask_len: 33}}]}]", "f.yaml:2:71: rate_limits[0].actions[0].masked_remote_address.v4_prefix_mask_len: prefixes are at most 32 and 128 bits"},
		"two actions":    {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{remote_address: {}, genericKey: {descriptor_value: a}}]}]", "f.yaml:2:59: rate_limits[0].actions[0].genericKey: does not go with remote_address: keep one of the two"},
		"too many hits":  {"token_bucket: {max_tokens: 0}\nrate_limits: [{hits_addend: {number: 4294967296}, actions: [{remote_address: {}}]}]", "f.yaml:2:38: rate_limits[0].hits_addend.number: must be a whole number from 0 to 4294967295"},
		"field twice":    {"token_bucket: {max_tokens: 1, maxTokens: 2}", "f.yaml:1:31: token_bucket.maxTokens: is given twice: keep one"},
		"long interval":  {"token_bucket: {max_tokens: 1, fill_interval: 40000000s}", "f.yaml:1:46: token_bucket.fill_interval: must be a duration in seconds from 0.05s to 366d, such as 60s"},
		"no network":     {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{remote_address_match: {address_matcher: {ranges: [{address_prefix: here}]}}}]}]", "f.yaml:2:94: rate_limits[0].actions[0].remote_address_match.address_matcher.ranges[0].address_prefix: must be an address, such as 10.0.0.0"},
		"long network":   {"token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{remote_address_match: {address_matcher: {ranges: [{address_prefix: 10.0.0.0, prefix_len: 33}]}}}]}]", "f.yaml:2:116: rate_limits[0].actions[0].remote_address_match.address_matcher.ranges[0].prefix_len: must be at most the bits of the address, 32 or 128"},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := filter(tt.text, importer.Options{})
			require.EqualError(t, err, tt.want)
			require.Empty(t, made.Policy)
		})
	}
}

// Values with signs of any notation, and names that no rule may have, make
// policies that are valid.
func TestUnusualValues(t *testing.T) {
	for _, value := range []string{"=a", "~a", "!", "!a", "*a*b", "~*", "!*", "=*", "(", "(*", "a\"b", "#a", "a: b", "é*", "\u2028", "null", "off", "1", "~", " ", strings.Repeat("long ", 100)} {
		for _, key := range []string{"user", "remote_address", "path", "method", "host", "generic_key", "a b", "*", "=k"} {
			quote := strconv.Quote
			made, err := service("domain: d\ndescriptors:\n  - {key: "+quote(key)+", value: "+quote(value)+", rate_limit: {unit: day, requests_per_unit: 1}}\n  - {key: "+quote(key)+", rate_limit: {unit: day, requests_per_unit: 2}}", importer.Options{})
			require.NoError(t, err, "%s %q\n%s", key, value, made.Policy)
			made, err = service("domain: d\ndescriptors:\n  - {key: "+quote(key)+", value: "+quote(value)+", rate_limit: {unit: day, requests_per_unit: 1}}", importer.Options{})
			if !errors.Is(err, importer.ErrNothing) { // no path begins so
				require.NoError(t, err, "%s %q\n%s", key, value, made.Policy)
			}
		}
	}
}

func TestNothingToImport(t *testing.T) {
	_, err := service("domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unlimited: true}\n", importer.Options{})
	require.ErrorIs(t, err, importer.ErrNothing)
	_, err = filter("static_resources: {}", importer.Options{})
	require.ErrorIs(t, err, importer.ErrNothing)
}

// One mistake has one error: what follows from it has none.
func TestFirstProblemOfANode(t *testing.T) {
	_, err := filter("token_bucket: {max_tokens: 0}\nrate_limits: [{actions: [{request_headers: {header_name: []}}]}]", importer.Options{})
	require.EqualError(t, err, "f.yaml:2:58: rate_limits[0].actions[0].request_headers.header_name: must be text, not a list")
}

// Fields that say nothing about limits are not decoded, so they cannot be wrong.
func TestOtherFieldsAreNotJudged(t *testing.T) {
	routes := &importer.File{Name: "r.yaml", Text: []byte(`virtual_hosts:
  - domains: ["*"]
    retry_policy: of a newer Envoy
    routes:
      - match: {prefix: /}
        direct_response: {body: {inline_string: "two\nlines"}}
        route: {timeout: soon, rate_limits: [{actions: [{request_headers: {header_name: a, descriptor_key: a}}]}]}
        rate_limitz: []
`)}
	made, err := service(one, importer.Options{Routes: routes})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "key: [{header: a}]")
	require.Len(t, made.Notes, 2)
	require.Equal(t, "r.yaml:8:9: virtual_hosts[0].routes[0].rate_limitz: the import does not know this field and made nothing of it", made.Notes[1].String())
}

func TestFilesOfOneDomain(t *testing.T) {
	file := func(name, text string) importer.File { return importer.File{Name: name, Text: []byte(text)} }
	made, err := importer.EnvoyRatelimit([]importer.File{file("a", one), file("b", strings.ReplaceAll(one, "key: a", "key: b"))}, importer.Options{})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "key: [{header: b}]")

	_, err = importer.EnvoyRatelimit([]importer.File{file("a", one), file("b", "domain: e\ndescriptors: []")}, importer.Options{})
	require.EqualError(t, err, "b:1:9: domain: is e, and that of the file before is d: a policy has one domain, so import them one by one")

	made, err = service(one+"---\n"+strings.ReplaceAll(one, "key: a", "key: b"), importer.Options{})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "key: [{header: b}]")

	_, err = importer.EnvoyRatelimit([]importer.File{file("a", one), file("b", one)}, importer.Options{})
	require.EqualError(t, err, "b:3:5: descriptors[0]: the descriptor a is given twice, which envoyproxy/ratelimit refuses: keep one")
}

func TestKeysThatAreGiven(t *testing.T) {
	made, err := service(one, importer.Options{Keys: map[string]string{"a": "header:X-User"}})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "key: [{header: x-user}]")
	require.Len(t, made.Notes, 1, "no guess is noted")

	made, err = service(strings.ReplaceAll(one, "key: a", "key: shop-route\n    value: shop-route"), importer.Options{})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "mode: \"off\"", "no header is its own value")

	made, err = service(strings.ReplaceAll(one, "key: a", "key: PATH"), importer.Options{})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "key: [{path: full}]")

	for _, part := range []string{"header:", "header:a b", "cookie:a", "path:x", "query", ""} {
		_, err = service(one, importer.Options{Keys: map[string]string{"a": part}})
		var key *importer.KeyError
		require.ErrorAs(t, err, &key, part)
	}
}

const twoListeners = `static_resources:
  listeners:
    - name: inside
      filter_chains: [{filters: [{typed_config: {http_filters: [
        {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, stat_prefix: a, token_bucket: {max_tokens: 1, fill_interval: 1s}}}]}}]}]
    - address: {socket_address: {address: 0.0.0.0, port_value: 80}}
      filter_chains: [{filters: [{typed_config: {http_filters: [
        {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, stat_prefix: b, token_bucket: {max_tokens: 2, fill_interval: 1s}}}]}}]}]
`

func TestListenerIsChosen(t *testing.T) {
	_, err := filter(twoListeners, importer.Options{})
	var choices *importer.Choices
	require.ErrorAs(t, err, &choices)
	require.Equal(t, []string{"inside", "0.0.0.0:80"}, choices.Names)

	made, err := filter(twoListeners, importer.Options{Listener: "0.0.0.0:80"})
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "name: b\n")
	require.NotContains(t, string(made.Policy), "name: a\n")

	_, err = filter(twoListeners, importer.Options{Listener: "outside"})
	require.ErrorAs(t, err, &choices)
}

func TestRoutesWithoutLimits(t *testing.T) {
	routes := &importer.File{Name: "r.yaml", Text: []byte("virtual_hosts: [{domains: ['*'], routes: [{match: {prefix: /}, route: {}}]}]")}
	_, err := service(one, importer.Options{Routes: routes})
	require.EqualError(t, err, "r.yaml: there are no rate_limits, or no filter envoy.filters.http.ratelimit with the domain d")

	routes.Text = []byte("virtual_hosts: [")
	_, err = service(one, importer.Options{Routes: routes})
	require.ErrorContains(t, err, "r.yaml:1: invalid YAML")
}

// Whatever is read, the result is a valid policy, or an error about the file.
func FuzzImport(f *testing.F) {
	f.Add(one, "virtual_hosts: [{domains: ['*'], rate_limits: [{actions: [{request_headers: {header_name: a, descriptor_key: a}}]}], routes: [{match: {prefix: /}}]}]")
	f.Add(twoListeners, "")
	f.Add("token_bucket: {max_tokens: 1, fill_interval: 1s}\ndescriptors: [{entries: [{key: a}]}]", "a: {virtual_hosts: [{domains: [b]}]}")
	f.Add("{"+tierListener+"}", "{"+tierRoutes+"}")
	f.Add(tierDomain, dump(serviceListener))
	f.Add(strings.NewReplacer("VHOST", "a.example", "PICK", "name: r", "VALUE", patch).Replace(envoyFilter), "")
	f.Add("kind: BackendTrafficPolicy\nspec: {rateLimit: {local: {rules: [{limit: {requests: 3, unit: Day}, clientSelectors: [{headers: [{type: Distinct, name: a}]}]}]}}}", "")
	f.Fuzz(func(t *testing.T, text, routes string) {
		o := importer.Options{Listener: "inside"}
		if routes != "" {
			o.Routes = &importer.File{Name: "r.yaml", Text: []byte(routes)}
		}
		for _, run := range []func(string, importer.Options) (importer.Imported, error){service, filter} {
			_, err := run(text, o)
			if err != nil {
				require.NotContains(t, err.Error(), "a fault of this import")
			}
		}
	})
}
