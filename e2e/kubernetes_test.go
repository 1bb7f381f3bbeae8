//go:build istio

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
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
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// Ports in the network of the test's own, on loopback.
const (
	etcdPort = 25379
	apiPort  = 25443
)

// kubernetes is a real API server, without the rest of Kubernetes.
type kubernetes struct {
	dir      string
	kube     *kubeAPI
	certs    certificates
	programs map[string]*child.Child
}

// ownNetwork makes the loopback of the namespace work, and refuses to run in the
// machine's own, where fixed ports are not ours.
func ownNetwork(t *testing.T, command string) {
	how := "run `" + command + "`, which gives this test namespaces of its own by unshare"
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	require.Len(t, interfaces, 1, how)
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	require.NoError(t, err)
	defer unix.Close(socket)
	lo, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	require.NoError(t, unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, lo), how)
}

// startKubernetes starts etcd and the API server. How is the command that names them.
func startKubernetes(t *testing.T, how string) *kubernetes {
	ownNetwork(t, how)
	etcd, apiServer := programOf(t, "SLUICE_ETCD", how), programOf(t, "SLUICE_KUBE_APISERVER", how)
	k := &kubernetes{dir: t.TempDir(), programs: map[string]*child.Child{}}
	k.certs = newCertificates(t, k.dir)
	at, peers := fmt.Sprint("http://127.0.0.1:", etcdPort), fmt.Sprint("http://127.0.0.1:", etcdPort+1)
	k.run(t, "etcd", nil, etcd, "--data-dir", filepath.Join(k.dir, "etcd"), "--listen-client-urls", at,
		"--advertise-client-urls", at,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	const token = "e2e"
	tokens := k.write(t, "tokens.csv", token+",admin,1,system:masters\n")
	c := k.certs
	k.run(t, "kube-apiserver", nil, apiServer, "--etcd-servers="+at, "--bind-address=127.0.0.1",
		"--advertise-address=10.0.0.1",
		fmt.Sprint("--secure-port=", apiPort), "--tls-cert-file="+c.cert, "--tls-private-key-file="+c.key,
		"--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow", "--feature-gates=ImageVolume=true",
		"--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.cert,
		"--service-account-signing-key-file="+c.key, "--service-cluster-ip-range=10.96.0.0/16")
	k.kube = &kubeAPI{url: fmt.Sprint("https://127.0.0.1:", apiPort), token: token, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.pool, MinVersion: tls.VersionTLS13}},
	}}
	eventually(t, 60*time.Second, "the API server", func() bool {
		k.alive(t)
		status, _ := k.kube.call(t, http.MethodGet, "/readyz", "")
		return status == http.StatusOK
	})
	k.write(t, "kubeconfig", `
apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: "`+k.kube.url+`", certificate-authority: `+c.ca+`}}]
users: [{name: e2e, user: {token: `+token+`}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`)
	return k
}

// programOf is the path that a variable has.
func programOf(t *testing.T, variable, how string) string {
	path := os.Getenv(variable)
	_, err := os.Stat(path)
	require.NoError(t, err, "%s names nothing: run `%s`, which builds and names it", variable, how)
	return path
}

// applyFiles applies the YAML of a folder.
func (k *kubernetes) applyFiles(t *testing.T, folder ...string) {
	files, err := filepath.Glob(filepath.Join(append(folder, "*.yaml")...))
	require.NoError(t, err)
	require.NotEmpty(t, files, folder)
	for _, file := range files {
		k.kube.apply(t, read(t, file))
	}
}

// run starts a program in a folder of its name, and ends it with the test.
func (k *kubernetes) run(t *testing.T, name string, env []string, path string, args ...string) *child.Child {
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = filepath.Join(k.dir, name), append(os.Environ(), env...)
	require.NoError(t, os.MkdirAll(cmd.Dir, 0o700))
	k.programs[name] = start(t, cmd)
	return k.programs[name]
}

func (k *kubernetes) write(t *testing.T, name, text string) string {
	path := filepath.Join(k.dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// alive fails the test when a program has ended by itself.
func (k *kubernetes) alive(t *testing.T) {
	for name, c := range k.programs {
		require.True(t, c.Running(), "%s has ended; its log is below", name)
	}
}

// certificates are a CA's, and one of 127.0.0.1 and registryName that is the proxies' too.
type certificates struct {
	ca, cert, key string // paths
	pool          *x509.CertPool
	pair          tls.Certificate
}

func newCertificates(t *testing.T, dir string) (c certificates) {
	c.ca = filepath.Join(dir, "ca.pem")
	c.cert = filepath.Join(dir, "cert.pem")
	c.key = filepath.Join(dir, "key.pem")
	authority := certtest.Issue(nil, nil)
	leaf := certtest.Issue(authority, []string{registryName}, func(c *x509.Certificate) {
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/edge/sa/edge"}}
	})
	c.pool, c.pair = certtest.Pool(authority), *leaf
	ca, _ := certtest.PEM(authority)
	cert, key := certtest.PEM(leaf)
	for path, text := range map[string]string{c.ca: ca, c.cert: cert, c.key: key} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return c
}

// kubeAPI is a running kube-apiserver.
type kubeAPI struct {
	url, token string
	client     *http.Client
}

var betweenDocuments = regexp.MustCompile(`(?m)^---\s*$`)

// apply stores resources as `kubectl apply --server-side --validate=strict` does.
func (k *kubeAPI) apply(t *testing.T, resources string) {
	k.send(t, resources, "")
}

// accepts has the API server check resources strictly, without storing them.
func (k *kubeAPI) accepts(t *testing.T, resources string) {
	k.send(t, resources, "&dryRun=All")
}

func (k *kubeAPI) send(t *testing.T, resources, query string) {
	for _, text := range betweenDocuments.Split(resources, -1) {
		path := k.path(t, text)
		if path == "" {
			continue
		}
		// The text goes as it is: Kubernetes' own reader of YAML reads it.
		status, answer := k.call(t, http.MethodPatch, path+"?fieldManager=e2e&force=true&fieldValidation=Strict"+query, text)
		require.Less(t, status, 300, "%s\n%s", answer, text)
	}
}

// remove deletes what apply has stored.
func (k *kubeAPI) remove(t *testing.T, resources string) {
	for _, text := range betweenDocuments.Split(resources, -1) {
		status, answer := k.call(t, http.MethodDelete, k.path(t, text), "")
		require.Equal(t, http.StatusOK, status, answer)
	}
}

// read decodes what the API server has stored, and is false where there is nothing.
func (k *kubeAPI) read(t *testing.T, path string, into any) bool {
	status, answer := k.call(t, http.MethodGet, path, "")
	if status == http.StatusNotFound {
		return false
	}
	require.Equal(t, http.StatusOK, status, "%s", answer)
	require.NoError(t, json.Unmarshal(answer, into))
	return true
}

// path is where the API server keeps a resource, "" for an empty document.
func (k *kubeAPI) path(t *testing.T, text string) string {
	var object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name, Namespace string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &object))
	if object.Kind == "" {
		return ""
	}
	group := "/apis/" + object.APIVersion
	if !strings.Contains(object.APIVersion, "/") {
		group = "/api/" + object.APIVersion
	}
	resource, namespaced := k.resource(t, group, object.Kind)
	if !namespaced {
		return group + "/" + resource + "/" + object.Metadata.Name
	}
	if object.Metadata.Namespace == "" {
		object.Metadata.Namespace = "default"
	}
	return group + "/namespaces/" + object.Metadata.Namespace + "/" + resource + "/" + object.Metadata.Name
}

// resource asks what the API server calls a kind. It waits, because the API server
// takes a moment over a new kind.
func (k *kubeAPI) resource(t *testing.T, group, kind string) (name string, namespaced bool) {
	eventually(t, 20*time.Second, "the API server to know "+kind+" of "+group, func() bool {
		var list struct {
			Resources []struct {
				Name, Kind string
				Namespaced bool
			}
		}
		if status, answer := k.call(t, http.MethodGet, group, ""); status != http.StatusOK ||
			json.Unmarshal(answer, &list) != nil {
			return false
		}
		for _, r := range list.Resources {
			if r.Kind == kind && !strings.Contains(r.Name, "/") {
				name, namespaced = r.Name, r.Namespaced
			}
		}
		return name != ""
	})
	return name, namespaced
}

// call sends one request. Status 0 means that nobody answered.
func (k *kubeAPI) call(t *testing.T, method, path, body string) (status int, answer []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second) // cleanups call it, too
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, k.url+path, bytes.NewReader([]byte(body)))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+k.token)
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	res, err := k.client.Do(req)
	if err != nil {
		return 0, fmt.Append(nil, err)
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, answer
}
