package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy"
)

func runRenderEnvoy(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return runRender(t, "", append([]string{"envoy"}, args...)...)
}

func TestRenderEnvoy(t *testing.T) {
	dir := t.TempDir()
	good, bad, wasm := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "filter.wasm")
	require.NoError(t, os.WriteFile(good, []byte("version: 1\nrules: [{name: all, limits: [10/1s]}]\n"), 0o600))
	managed, token := filepath.Join(dir, "managed.yaml"), strings.Repeat("5a", 32)
	require.NoError(t, os.WriteFile(managed, []byte(
		"version: 1\nrules: [{name: all, key: [{header: x-user-id}], missing_key: deny, limits: [10/1s]}]\nmanage: {path: /.sluice/, token_sha256: "+token+", port: 9902}\n"), 0o600))
	open := filepath.Join(dir, "open.yaml")
	require.NoError(t, os.WriteFile(open, []byte(
		"version: 1\nrules: [{name: all, limits: [10/1s]}]\nmanage: {path: /.sluice/, token_sha256: "+token+"}\n"), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte("version: 1\nrules: [{nam: all}]\n"), 0o600))
	require.NoError(t, os.WriteFile(wasm, nil, 0o600))
	base := []string{"--listen", "127.0.0.1:10000", "--upstream", "127.0.0.1:8080", "--admin", "127.0.0.1:9901", "--wasm", wasm}
	with := func(more ...string) []string { return append(base[:len(base):len(base)], more...) }

	t.Run("everything", func(t *testing.T) {
		stdout, stderr, err := runRenderEnvoy(t, with("-f", managed, "--xds", "control:18000,spare:18000", "--node", "edge-1", "--envoy-version", "1.36", "--manage", "127.0.0.1:9902",
			"--quota", "quota:18001", "--xds-ca", "ca.pem", "--xds-cert", "cert.pem", "--xds-key", "key.pem", "--manage-cert", "m.pem", "--manage-key", "m.key")...)
		require.NoError(t, err)
		require.Empty(t, stderr)
		want, err := envoy.Bootstrap(envoy.BootstrapOptions{
			AccessLog: "/dev/stdout", Headers: []string{"x-user-id"},
			Plugin: envoy.Plugin{Envoy: "1.36", Wasm: wasm, Policy: []byte(`{"version":1,"rules":[{"name":"all","key":[{"header":"x-user-id"}],"missing_key":"deny","limits":["10/1s"]}],"manage":{"path":"/.sluice/","token_sha256":"` + token + `","port":9902}}`)},
			Listen: "127.0.0.1:10000", Upstream: "127.0.0.1:8080", Admin: "127.0.0.1:9901", Manage: "127.0.0.1:9902",
			XDS: []string{"control:18000", "spare:18000"}, Node: "edge-1",
			XDSTLS:    &envoy.ClientTLS{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem"},
			Quota:     []string{"quota:18001"},
			QuotaTLS:  &envoy.ClientTLS{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem"},
			ManageTLS: &envoy.ServerTLS{Cert: "m.pem", Key: "m.key"},
		})
		require.NoError(t, err)
		require.Equal(t, string(want), stdout)
	})
	t.Run("filter on another machine", func(t *testing.T) {
		stdout, stderr, err := runRenderEnvoy(t, with("--wasm", "/nowhere/sluice.wasm")...)
		require.NoError(t, err)
		require.Contains(t, stdout, "filename: /nowhere/sluice.wasm")
		require.Equal(t, "warning: /nowhere/sluice.wasm is not on this machine; it has to be on the proxy's\n", stderr)
	})
	t.Run("addresses that others reach", func(t *testing.T) {
		_, stderr, err := runRenderEnvoy(t, with("--admin", "0.0.0.0:9901", "--manage", "10.0.0.1:9902", "--xds", "control:18000", "--node", "n")...)
		require.NoError(t, err)
		require.Equal(t, 3, strings.Count(stderr, "warning: "), stderr)
		for _, want := range []string{"--admin 0.0.0.0:9901 is not", "--manage 10.0.0.1:9902 is not", "--xds control:18000 is not"} {
			require.Contains(t, stderr, want)
		}
	})
	t.Run("the port that manage needs", func(t *testing.T) {
		_, _, err := runRenderEnvoy(t, with("--manage", "127.0.0.1:9907", "-f", open)...)
		require.Equal(t, "add port: 9907 to manage in the policy", Hint(err))
	})
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no upstream":                     {[]string{"--listen", ":1", "--admin", ":2"}, `required flag(s) "upstream" not set`},
		"bad address":                     {with("--xds", "control", "--node", "n"), `xds address "control": has no port`},
		"no node":                         {with("--xds", "control:1"), "no node id"},
		"xds twice":                       {with("--xds", "a:1,a:1", "--node", "n"), `xds address "a:1" is given twice`},
		"not a version":                   {with("--envoy-version", "latest"), `version "latest" of Envoy: want one such as 1.40`},
		"no policy":                       {with("-f", filepath.Join(dir, "none.yaml")), "read policy: open"},
		"bad policy":                      {with("-f", bad), bad + ":2:10: rules[0].nam"},
		"an argument":                     {with("policy.yaml"), `unexpected argument "policy.yaml"`},
		"TLS, no xds":                     {with("--xds-ca", "ca.pem"), "need --xds or --quota"},
		"manage, but the policy has none": {with("--manage", "127.0.0.1:9902", "-f", good), "the policy has no manage"},
		"manage on every port":            {with("--manage", "127.0.0.1:9902", "-f", open), "the policy's manage has no port"},
		"manage cert, no key":             {with("--manage", "127.0.0.1:9902", "--manage-cert", "c"), "go together"},
		"manage cert, no listener":        {with("--manage-cert", "c", "--manage-key", "k"), "no listener for them"},
		"manage on another port":          {with("--manage", "127.0.0.1:9903", "-f", managed), "on port 9902 alone"},
		"key, no cert":                    {with("--xds", "a:1", "--node", "n", "--xds-ca", "c", "--xds-key", "k"), "belong together"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _, err := runRenderEnvoy(t, tc.args...)
			require.ErrorContains(t, err, tc.want)
			require.Empty(t, stdout)
		})
	}
}

// TestRenderFilter: the parts for a configuration of one's own.
func TestRenderFilter(t *testing.T) {
	dir := t.TempDir()
	file, wasm := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "filter.wasm")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\nrules: [{name: all, key: [{first_of: [{header: x-user-id}, client_ip]}], limits: [10/1s]}]\n"), 0o600))
	require.NoError(t, os.WriteFile(wasm, nil, 0o600))
	stdout, _, err := runRender(t, "", "filter", "-f", file, "--wasm", wasm)
	require.NoError(t, err)
	require.Contains(t, stdout, `client_ip: "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"`)
	require.Contains(t, stdout, `x-user-id: "%REQ(x-user-id)%"`)
	require.NotContains(t, stdout, "sluice_xds")
	stdout, stderr, err := runRender(t, "", "filter", "--wasm", wasm, "--xds", "127.0.0.1:1", "--xds", "10.0.0.1:2", "--node", "n", "--access-log", "")
	require.NoError(t, err)
	require.Contains(t, stdout, "priority: 1\n")
	require.NotContains(t, stdout, "access_log")
	require.Equal(t, 1, strings.Count(stderr, "warning: "), stderr)
	require.Contains(t, stderr, "--xds 10.0.0.1:2 is not")
	_, _, err = runRender(t, "", "filter", "--wasm", wasm)
	require.ErrorContains(t, err, "neither a policy nor a control plane")
	_, _, err = runRender(t, "", "filter", "--wasm", wasm, "--xds", "127.0.0.1:1")
	require.ErrorContains(t, err, "no node id")
	_, _, err = runRender(t, "", "filter", "-f", file, "--wasm", wasm, "--manage", "127.0.0.1:9902")
	require.ErrorContains(t, err, "the policy has no manage")
}

// TestEmptyPolicyIsValid: what render bakes in without -f is a policy.
func TestEmptyPolicyIsValid(t *testing.T) {
	_, _, _, err := policyfile.Read("empty", []byte(envoy.EmptyPolicy))
	require.NoError(t, err)
}

func TestWriteFilter(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	path, err := writeFilter([]byte("one"))
	require.NoError(t, err)
	again, err := writeFilter([]byte("one"))
	require.NoError(t, err)
	require.Equal(t, path, again)
	other, err := writeFilter([]byte("two"))
	require.NoError(t, err)
	require.NotEqual(t, path, other)

	require.NoError(t, os.WriteFile(path, nil, 0o600)) // a disk that was full
	_, err = writeFilter([]byte("one"))
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, files, 2, "no temporary files left")
}
