package examples_test

import (
	"cmp"
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

// What the refused values begin with.
const (
	least = "image: {repository: a}\nproxies: [{namespace: edge}]\n"
	serve = "serve: {flags: {access: a, xds-client-ca: b}}\n"
	quota = "quota: {enabled: true, flags: {quota-domains: any, quota-store: "
)

// refused are values that cannot work, each with what Helm says. Helm 3 says in other words what does not fit
// the schema.
var refused = []struct{ values, want, helm3 string }{
	{
		values: "",
		want:   "at '/image/repository': '' does not match pattern",
		helm3:  "image.repository: Does not match pattern",
	},
	{
		values: "image: {repository: a}\n" + serve,
		want:   "at '/proxies': minItems: got 0, want 1",
		helm3:  "proxies: Array must have at least 1 items",
	},
	// A value of null takes the default away. In a NetworkPolicy an empty list of peers lets everybody in.
	{
		values: "image: {repository: a}\nproxies:\n" + serve,
		want:   "missing property 'proxies'",
		helm3:  "proxies is required",
	},
	{
		values: "image: {repository: null}\nproxies: [{namespace: edge}]\n" + serve,
		want:   "at '/image': missing property 'repository'",
		helm3:  "image: repository is required",
	},
	{
		values: least,
		want:   "at '/serve/flags': missing properties 'access', 'xds-client-ca'",
		helm3:  "serve.flags: access is required\n- serve.flags: xds-client-ca is required",
	},
	{
		values: least + "serve: {replicas: 2, flags: {access: a, xds-client-ca: b}}",
		want:   "at '/serve/flags': missing property 'store'",
		helm3:  "serve.flags: store is required",
	},
	{
		values: least + "serve: {enabled: false}",
		want:   "at '/quota/flags': missing properties 'access', 'client-ca'",
		helm3:  "quota.flags: access is required\n- quota.flags: client-ca is required",
	},
	{values: least + "serve: {enabled: false}\nquota: {flags: {access: a, client-ca: b}}", want: "nothing would run"},
	{
		values: least + serve + "quota: {enabled: true}",
		want:   "at '/quota/flags': missing properties 'quota-store', 'quota-domains'",
		helm3:  "quota.flags: quota-store is required\n- quota.flags: quota-domains is required",
	},
	{
		values: least + serve + quota + "memory}}",
		want:   "at '/quota/flags/quota-store': 'memory' does not match pattern",
		helm3:  "quota.flags.quota-store: Does not match pattern",
	},
	{
		values: least + serve + quota + "'redis://:secret@a'}}",
		want:   "quota-store has a password, which the pod's arguments would show",
	},
	{
		values: least + serve + quota + "rediss://a}}",
		want:   "the image has no certificate authorities: add ?ca=/etc/sluice/NAME",
	},
	{
		values: least + serve + quota + "'rediss://a?ca=/etc/sluice/b'}}",
		want:   "names the file /etc/sluice/b, which the pod does not",
	},
	{
		values: least + serve + quota + "redis://a, ratelimit-merge: true}}",
		want:   "ratelimit-merge needs ratelimit-config or",
	},
	{
		values: least + serve + quota + "redis://a, ratelimit-xds: 'a:1', ratelimit-config: {a: b}}}",
		want:   "exclude each other",
	},
	{
		values: least + serve + quota + "redis://a}, autoscaling: {enabled: true, maxReplicas: 1}}",
		want:   "maxReplicas is less than",
	},
	{
		values: least + "serve: {flags: {access: a, xds-client-ca: b, manage-token-file: {secret: a, key: b}}}",
		want:   "properties 'manage-allow', 'manage-ca' required, if 'manage-token-file' exists",
		helm3:  "serve.flags: Has a dependency on manage-allow\n- serve.flags: Has a dependency on manage-ca",
	},
	{
		values: least + "serve: {flags: {access: a, xds-client-ca: b, quota-password-file: secret}}",
		want:   "at '/serve/flags/quota-password-file': got string, want object",
		helm3:  "serve.flags.quota-password-file: Invalid type. Expected: object, given: string",
	},
	{
		values: least + "serve: {flags: {access: a, xds-client-ca: b}, files: {password: secret}}",
		want:   "at '/serve/files/password': got string, want object",
		helm3:  "serve.files.password: Invalid type. Expected: object, given: string",
	},
	{
		values: least + serve + "policies: {a.yaml: b}",
		want:   "at '/apply/flags': missing property 'ca'",
		helm3:  "apply.flags: ca is required",
	},
	{
		values: least + serve + "policies: {a.yaml: b}\napply: {flags: {ca: a}}",
		want:   "policies needs apply.flags.token-file",
	},
	{
		values: least + "serve: {enabled: false}\npolicies: {a.yaml: b}\napply: {flags: {ca: a}}\n" +
			"quota: {enabled: true, flags: {quota-store: 'redis://a', quota-domains: any, access: a, client-ca: b}}",
		want: "policies needs serve.enabled",
	},
	{
		values: least + serve + "monitoring: {monitors: {enabled: true}}",
		want:   "at '/monitoring/monitors/token': missing property",
		helm3:  "monitoring.monitors.token: secret is required",
	},
	{
		values: least + serve + "server: {}",
		want:   "additional properties 'server' not allowed",
		helm3:  "Additional property server is not allowed",
	},
	{
		values: "image: {repository: a}\nproxies: [{cidr: a, namespace: b}]\n" + serve,
		want:   "at '/proxies/0': 'oneOf' failed",
		helm3:  "proxies.0: Must validate one and only one schema",
	},
}

// Values that cannot work are refused, each with what would be right, and no password is printed.
func TestRefusedValues(t *testing.T) {
	version, err := charttest.Run(t, "version", "--short")
	require.NoError(t, err)
	for _, tc := range refused {
		_, err := charttest.Template(t, tc.values)
		want := tc.want
		if strings.HasPrefix(version, "v3.") {
			want = cmp.Or(tc.helm3, tc.want)
		}
		require.ErrorContains(t, err, want, tc.values)
		require.NotContains(t, err.Error(), "secret@")
	}
}
