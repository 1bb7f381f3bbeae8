package examples_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/charttest"
)

// kindsOf are the kinds of resources that the values in testdata/values render.
var kindsOf = map[string]string{
	"least": "ServiceAccount NetworkPolicy Service StatefulSet",
	"etcd": "ServiceAccount Certificate ConfigMap NetworkPolicy PodDisruptionBudget Service " +
		"Deployment",
	"full": "ServiceAccount ConfigMap ConfigMap ConfigMap ConfigMap ConfigMap NetworkPolicy NetworkPolicy NetworkPolicy " +
		"Service Service Deployment StatefulSet HorizontalPodAutoscaler Job PodDisruptionBudget " +
		"ServiceMonitor ServiceMonitor PodMonitor PrometheusRule",
	"ratelimit": "ServiceAccount ConfigMap NetworkPolicy PodDisruptionBudget Service Deployment",
	"open":      "ServiceAccount Service StatefulSet",
}

// values returns the values in testdata/values, by name.
func values(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	require.NoError(t, err)
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = string(text)
	}
	require.Equal(t, slices.Sorted(maps.Keys(kindsOf)), slices.Sorted(maps.Keys(all)))
	return all
}

// Helm finds nothing to say about the chart.
func TestLint(t *testing.T) {
	for name, text := range values(t) {
		said, err := charttest.Run(t, "lint", charttest.Dir(), "--strict", "--values", charttest.Values(t, text))
		require.NoError(t, err, name)
		require.NotContains(t, said, "[WARNING]", name)
	}
}

// If all policies are commented out, their value is null, and the chart applies none.
func TestPoliciesOfNull(t *testing.T) {
	rendered, err := charttest.Template(t, values(t)["least"]+"\npolicies:\n")
	require.NoError(t, err)
	require.NotContains(t, rendered, "kind: Job")
}

// ofOperators are kinds that need an operator; `make e2e-chart` asks a real API server about them.
var ofOperators = []string{"Certificate", "ServiceMonitor", "PodMonitor", "PrometheusRule"}

// The API server refuses a field that it does not know, or that is there twice.
func TestKubernetesReadsTheResources(t *testing.T) {
	read := buildtest.Kubernetes(t)
	for name, text := range values(t) {
		t.Run(name, func(t *testing.T) {
			rendered, err := charttest.Template(t, text)
			require.NoError(t, err)
			var kinds, native []string
			for document := range strings.SplitSeq(rendered, "\n---\n") {
				_, kind, _ := strings.Cut(document, "\nkind: ")
				kind, _, _ = strings.Cut(kind, "\n")
				kinds = append(kinds, kind)
				require.Contains(t, document, "\n  namespace: "+charttest.Namespace+"\n")
				if !slices.Contains(ofOperators, kind) {
					native = append(native, document)
				}
			}
			require.ElementsMatch(t, strings.Fields(kindsOf[name]), kinds)
			list, err := read([]byte(strings.Join(native, "\n---\n")))
			require.NoError(t, err)
			require.Len(t, list, len(native))
		})
	}
}

// Values that cannot work are refused, each with what would be right, and no password is printed.
func TestRefusedValues(t *testing.T) {
	const (
		least = "image: {repository: a}\nproxies: [{namespace: edge}]\n"
		serve = "serve: {flags: {access: a, xds-client-ca: b}}\n"
		quota = "quota: {enabled: true, flags: {quota-domains: any, quota-store: "
	)
	for _, tc := range []struct{ values, want string }{
		{"", "at '/image/repository': '' does not match pattern"},
		{"image: {repository: a}\n" + serve, "at '/proxies': minItems: got 0, want 1"},
		// A value of null takes the default away. In a NetworkPolicy an empty list of peers lets everybody in.
		{"image: {repository: a}\nproxies:\n" + serve, "missing property 'proxies'"},
		{"image: {repository: null}\nproxies: [{namespace: edge}]\n" + serve, "at '/image': missing property 'repository'"},
		{least, "at '/serve/flags': missing properties 'access', 'xds-client-ca'"},
		{least + "serve: {replicas: 2, flags: {access: a, xds-client-ca: b}}", "at '/serve/flags': missing property 'store'"},
		{least + "serve: {enabled: false}", "at '/quota/flags': missing properties 'access', 'client-ca'"},
		{least + "serve: {enabled: false}\nquota: {flags: {access: a, client-ca: b}}", "nothing would run"},
		{least + serve + "quota: {enabled: true}", "at '/quota/flags': missing properties 'quota-store', 'quota-domains'"},
		{least + serve + quota + "memory}}", "at '/quota/flags/quota-store': 'memory' does not match pattern"},
		{least + serve + quota + "'redis://:secret@a'}}", "quota-store has a password, which the pod's arguments would show"},
		{least + serve + quota + "rediss://a}}", "the image has no certificate authorities: add ?ca=/etc/sluice/NAME"},
		{least + serve + quota + "'rediss://a?ca=/etc/sluice/b'}}", "names the file /etc/sluice/b, which the pod does not"},
		{least + serve + quota + "redis://a, ratelimit-merge: true}}", "ratelimit-merge needs ratelimit-config or"},
		{least + serve + quota + "redis://a, ratelimit-xds: 'a:1', ratelimit-config: {a: b}}}", "exclude each other"},
		{least + serve + quota + "redis://a}, autoscaling: {enabled: true, maxReplicas: 1}}", "maxReplicas is less than"},
		{
			least + "serve: {flags: {access: a, xds-client-ca: b, manage-token-file: {secret: a, key: b}}}",
			"properties 'manage-allow', 'manage-ca' required, if 'manage-token-file' exists",
		},
		{
			least + "serve: {flags: {access: a, xds-client-ca: b, quota-password-file: secret}}",
			"at '/serve/flags/quota-password-file': got string, want object",
		},
		{
			least + "serve: {flags: {access: a, xds-client-ca: b}, files: {password: secret}}",
			"at '/serve/files/password': got string, want object",
		},
		{least + serve + "policies: {a.yaml: b}", "at '/apply/flags': missing property 'ca'"},
		{least + serve + "policies: {a.yaml: b}\napply: {flags: {ca: a}}", "policies needs apply.flags.token-file"},
		{
			least + "serve: {enabled: false}\npolicies: {a.yaml: b}\napply: {flags: {ca: a}}\n" +
				"quota: {enabled: true, flags: {quota-store: 'redis://a', quota-domains: any, access: a, client-ca: b}}",
			"policies needs serve.enabled",
		},
		{least + serve + "monitoring: {monitors: {enabled: true}}", "at '/monitoring/monitors/token': missing property"},
		{least + serve + "server: {}", "additional properties 'server' not allowed"},
		{"image: {repository: a}\nproxies: [{cidr: a, namespace: b}]\n" + serve, "at '/proxies/0': 'oneOf' failed"},
	} {
		_, err := charttest.Template(t, tc.values)
		require.ErrorContains(t, err, tc.want, tc.values)
		require.NotContains(t, err.Error(), "secret@")
	}
}
