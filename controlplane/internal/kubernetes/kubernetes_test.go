package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

func some() Options {
	return Options{
		Image: "registry.example/sluice:v0.1.0", Namespace: "on", Storage: "4Gi",
		ServeFiles: []string{"http-client-ca", "node-names"}, QuotaFiles: []string{"quota-password-file"},
		QuotaStore: "rediss+sentinel://a:1,[::1]:2/main?ca=/etc/sluice/redis-ca",
		Proxies:    []string{"edge/app.kubernetes.io/name=envoy", "shop"}, Callers: []string{"ci"},
	}
}

// The API server refuses a field that it does not know, or that is there twice.
func TestKubernetesReadsTheManifests(t *testing.T) {
	read := buildtest.Kubernetes(t)
	alone := some()
	alone.QuotaStore = ""
	alone.QuotaFiles, alone.Callers = nil, nil
	for _, tc := range []struct {
		o    Options
		want []string
	}{
		{some(), []string{
			"ServiceAccount", "Service", "StatefulSet", "NetworkPolicy",
			"Service", "Deployment", "NetworkPolicy", "PodDisruptionBudget",
		}},
		{alone, []string{"ServiceAccount", "Service", "StatefulSet", "NetworkPolicy"}},
	} {
		text, err := Manifests(tc.o)
		require.NoError(t, err)
		list, err := read(text)
		require.NoError(t, err)
		var kinds []string
		for _, object := range list {
			require.Equal(t, "on", object.Metadata.Namespace)
			kinds = append(kinds, object.Kind)
		}
		require.Equal(t, tc.want, kinds)
	}
}

func TestWhatIsRefused(t *testing.T) {
	const quotaKey = "quota-key-file"
	for _, tc := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Image = "a\nb" }, `--image "a\nb": want REGISTRY/IMAGE:TAG`},
		{func(o *Options) { o.Namespace = "A" }, `--namespace "A": want`},
		{func(o *Options) { o.Storage = "much" }, `--storage "much": want a size such as 4Gi`},
		{func(o *Options) { o.Proxies = []string{"edge/app"} }, `--proxies "edge/app": want NAMESPACE or NAMESPACE/LABEL`},
		{func(o *Options) { o.Callers = []string{"*"} }, `--callers "*": want`},
		{func(o *Options) { o.QuotaStore = "" }, "--quota-file without --quota-store"},
		{func(o *Options) { o.QuotaStore = "http://a" }, "a quota store's URL is redis://HOST:PORT"},
		{func(o *Options) { o.QuotaStore = "redis://:secret@a" }, "--quota-store has a password, which"},
		{func(o *Options) { o.QuotaStore = "rediss://a" }, "the image has no certificate authorities"},
		{func(o *Options) { o.QuotaStore = "rediss://a?ca=/etc/ca" }, `--quota-store names the file "/etc/ca"`},
		{func(o *Options) { o.ServeFiles = []string{quotaKey} }, "--serve-file quota-key-file: serve has no such store"},
	} {
		o := some()
		tc.change(&o)
		_, err := Manifests(o)
		require.ErrorContains(t, err, tc.want)
		require.NotContains(t, err.Error(), "secret@")
	}
}
