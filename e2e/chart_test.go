package e2e

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/charttest"
	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// chartValues are the values of TestChart. REDIS is the address of its Redis.
const chartValues = `
image: {repository: registry.example/sluice}
proxies: [{namespace: edge}]
serve:
  flags:
    access: {secret: sluice, key: access}
    xds-client-ca: {secret: sluice, key: ca.pem}
    manage-token-file: {secret: sluice, key: token}
    manage-allow: 127.0.0.0/8
    manage-ca: {secret: sluice, key: ca.pem}
quota:
  enabled: true
  flags:
    quota-store: redis://REDIS
    quota-domains: "* shop"
    ratelimit-config:
      shop.yaml: |
        domain: shop
        descriptors: [{key: user, rate_limit: {unit: month, requests_per_unit: 1}}]
policies: {shop.yaml: "version: 1\ndomain: shop\nrules: [{name: all, limits: [10/1h]}]"}
apply:
  flags: {token-file: {secret: sluice, key: token}, ca: {secret: sluice, key: ca.pem}, wait: 60s}
`

// pods are this machine in the place of a cluster: it starts the containers that the chart
// renders as processes, with files and addresses of its own.
type pods struct {
	dir       string
	secret    map[string]string // the Secret of all files
	addresses *strings.Replacer
	client    *http.Client
	xds, http string // addresses of serve
	calls     string // that of quota for HTTP
	job       string // UID of the Job that was run last
}

func newPods(t *testing.T) *pods {
	authority := certtest.Issue(nil, nil)
	ca, _ := certtest.PEM(authority)
	cert, key := certtest.PEM(certtest.Issue(authority, []string{"localhost"}))
	proxyCert, proxyKey := certtest.PEM(certtest.Issue(authority, []string{"edge"}))
	c := &pods{
		dir: t.TempDir(), xds: freeAddress(t), http: freeAddress(t), calls: freeAddress(t),
		secret: map[string]string{
			"ca.pem": ca, "tls.crt": cert, "tls.key": key, "edge.pem": proxyCert, "edge.key": proxyKey, "token": token,
			"access": fmt.Sprintf("token ci admin %x\n", sha256.Sum256([]byte(token))),
		},
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: certtest.Pool(authority), MinVersion: tls.VersionTLS12,
		}}},
	}
	c.addresses = strings.NewReplacer("https://sluice-serve.sluice.svc:18080", "https://"+c.http,
		"=:18080", "="+c.http, "=:18000", "="+c.xds, "=:18081", "="+c.calls, "=:18001", "="+freeAddress(t),
		"=/var/lib/sluice", "="+filepath.Join(c.dir, "data"))
	for name, text := range c.secret {
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600))
	}
	return c
}

// containers renders the chart.
func (c *pods) containers(t *testing.T, values string) map[string]charttest.Container {
	rendered, err := charttest.Template(t, values)
	require.NoError(t, err)
	for _, name := range []string{"tls.key", "edge.key", "token"} {
		require.NotContains(t, rendered, c.secret[name])
	}
	return charttest.Containers(t, rendered)
}

var fileOfPod = regexp.MustCompile(`/etc/sluice[-a-z]*/[-._a-z0-9]+`)

// args are a container's arguments on this machine. A file that the pod does not have fails the test.
func (c *pods) args(t *testing.T, container charttest.Container) (args []string) {
	for _, arg := range container.Args {
		arg = fileOfPod.ReplaceAllStringFunc(arg, func(path string) string {
			from, found := container.Files[path]
			require.True(t, found, "%s has no file %s", container.Name, path)
			text := from.Text
			if from.ConfigMap == "" {
				text, found = c.secret[from.Key]
				require.True(t, found, "%s of the Secret %s", from.Key, from.Secret)
			}
			file := filepath.Join(c.dir, container.Name, path)
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			return file
		})
		args = append(args, c.addresses.Replace(arg))
	}
	return args
}

// start starts a container and waits until its readiness probe is answered.
func (c *pods) start(t *testing.T, container charttest.Container, address string) {
	started := start(t, exec.Command(built.sluice, c.args(t, container)...))
	probe := container.ReadinessProbe.HTTPGet
	at := strings.ToLower(probe.Scheme) + "://" + address + probe.Path
	require.NoError(t, started.Until(t.Context(), "be ready", func() bool {
		res, err := c.client.Get(at)
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}))
}

// What the chart renders starts serve and quota, and applies policies. A policy that serve or a
// proxy refuses fails the Job with their words.
func TestChart(t *testing.T) {
	t.Parallel()
	redis := servertest.StartRedis(t, servertest.Redis(t))
	values := strings.ReplaceAll(chartValues, "REDIS", redis.Addr())
	c := newPods(t)
	containers := c.containers(t, values)
	reach, apply := c.args(t, containers["reach"]), c.args(t, containers["apply"])

	sluiceRefuses(t, "connect", reach...)
	c.start(t, containers["serve"], c.http)
	sluiceOK(t, reach...)
	require.Contains(t, sluiceOK(t, apply...), "no proxy is connected")

	path := func(name string) string { return filepath.Join(c.dir, name) }
	xds := strings.Replace(c.xds, "127.0.0.1", "localhost", 1)
	newest(t).start(t, proxyOptions{node: "edge", xds: xds, flags: []string{
		"--xds-ca", path("ca.pem"), "--xds-cert", path("edge.pem"), "--xds-key", path("edge.key"), "--open-without-policy",
	}})
	eventually(t, time.Minute, "the proxy to connect", func() bool {
		return strings.Contains(sluiceOK(t, reach...), "edge ")
	})
	require.Regexp(t, `edge +ACK`, sluiceOK(t, apply...))

	bad := replaced(t, values, "limits: [10/1h]", "limits: [10/1fortnight]")
	sluiceRefuses(t, `shop.yaml:3:`, c.args(t, c.containers(t, bad)["apply"])...)
	missing := replaced(t, values, "wait: 60s", "wait: 60s, wasm: "+path("none.wasm"))
	out, errs, exit := sluice(t, c.args(t, c.containers(t, missing)["apply"])...)
	require.Equal(t, 1, exit, errs)
	require.Regexp(t, `edge +NACK .*none\.wasm`, out)

	c.start(t, containers["quota"], c.calls)
	require.Equal(t, []int{http.StatusOK, http.StatusTooManyRequests}, []int{c.call(t), c.call(t)})
}

// call asks quota's rate limit service about one request of a user.
func (c *pods) call(t *testing.T) (status int) {
	at := url.URL{Scheme: "https", Host: c.calls, Path: "/json"}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.String(),
		strings.NewReader(`{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}`))
	require.NoError(t, err)
	request.Header.Set("Authorization", bearer)
	res, err := c.client.Do(request)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode
}
