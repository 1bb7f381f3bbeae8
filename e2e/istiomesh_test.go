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
	etcdPort      = 25379
	apiPort       = 25443
	discoveryPort = 25010
	istiodPort    = 25011 // and the next one
	injectorPort  = 25013
)

// registryName is 127.0.0.1 for the proxies.
const registryName = "registry.example"

// mesh is Istio's control plane on a real API server, without the rest of Kubernetes.
type mesh struct {
	dir    string
	kube   *kubeAPI
	certs  certificates
	tokens tokens

	installed, etcd, apiServer, envoy string // paths
	programs                          map[string]*child.Child
}

// startMesh starts etcd, the API server and istiod.
func startMesh(t *testing.T) *mesh {
	ownNetwork(t)
	m := &mesh{dir: t.TempDir(), programs: map[string]*child.Child{}, envoy: newest(t).envoy, tokens: newTokens(t)}
	for variable, path := range map[string]*string{"SLUICE_ISTIO": &m.installed, "SLUICE_ETCD": &m.etcd,
		"SLUICE_KUBE_APISERVER": &m.apiServer} {
		*path = os.Getenv(variable)
		_, err := os.Stat(*path)
		require.NoError(t, err, "%s names nothing: run `make e2e-istio`, which builds and names it", variable)
	}
	m.certs = newCertificates(t, m.dir)
	m.startKube(t)
	m.applyFiles(t, m.installed, "crds")
	m.kube.apply(t, meshResources(t, upstream().Listener.Addr().(*net.TCPAddr).Port, m.tokens.keys(t)))
	m.applyInjector(t)
	m.startIstiod(t)
	return m
}

// ownNetwork makes the loopback of the namespace work, and refuses to run in the
// machine's own, where fixed ports are not ours.
func ownNetwork(t *testing.T) {
	const how = "run `make e2e-istio`, which gives this test namespaces of its own by unshare"
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

// startKube starts etcd and the API server.
func (m *mesh) startKube(t *testing.T) {
	at, peers := fmt.Sprint("http://127.0.0.1:", etcdPort), fmt.Sprint("http://127.0.0.1:", etcdPort+1)
	m.run(t, "etcd", nil, m.etcd, "--data-dir", filepath.Join(m.dir, "etcd"), "--listen-client-urls", at,
		"--advertise-client-urls", at,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	const token = "e2e"
	tokens := m.write(t, "tokens.csv", token+",admin,1,system:masters\n")
	c := m.certs
	m.run(t, "kube-apiserver", nil, m.apiServer, "--etcd-servers="+at, "--bind-address=127.0.0.1",
		"--advertise-address=10.0.0.1",
		fmt.Sprint("--secure-port=", apiPort), "--tls-cert-file="+c.cert, "--tls-private-key-file="+c.key,
		"--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow", "--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.cert,
		"--service-account-signing-key-file="+c.key, "--service-cluster-ip-range=10.96.0.0/16")
	m.kube = &kubeAPI{url: fmt.Sprint("https://127.0.0.1:", apiPort), token: token, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.pool, MinVersion: tls.VersionTLS13}},
	}}
	eventually(t, 60*time.Second, "the API server", func() bool {
		m.alive(t)
		status, _ := m.kube.call(t, http.MethodGet, "/readyz", "")
		return status == http.StatusOK
	})
	m.write(t, "kubeconfig", `
apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: "`+m.kube.url+`", certificate-authority: `+c.ca+`}}]
users: [{name: e2e, user: {token: `+token+`}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`)
}

// applyFiles applies the YAML of a folder.
func (m *mesh) applyFiles(t *testing.T, folder ...string) {
	files, err := filepath.Glob(filepath.Join(append(folder, "*.yaml")...))
	require.NoError(t, err)
	require.NotEmpty(t, files, folder)
	for _, file := range files {
		m.kube.apply(t, read(t, file))
	}
}

func (m *mesh) startIstiod(t *testing.T) {
	kubeconfig := filepath.Join(m.dir, "kubeconfig")
	m.run(t, "istiod", []string{
		"POD_NAME=istiod", "POD_NAMESPACE=istio-system", "CLUSTER_ID=Kubernetes", "KUBECONFIG=" + kubeconfig,
		"PILOT_CERT_PROVIDER=none", "PILOT_ENABLE_AMBIENT=true", "PILOT_ENABLE_SENDING_HBONE=false",
		"PILOT_ENABLE_SIDECAR_LISTENING_HBONE=false",
		"ENABLE_CA_SERVER=false", "VALIDATION_WEBHOOK_CONFIG_NAME=", "INJECTION_WEBHOOK_CONFIG_NAME=",
		// Filters that only Istio's own builds of Envoy have.
		"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false",
	}, filepath.Join(m.installed, "pilot-discovery"), "discovery", "--kubeconfig="+kubeconfig, "--namespace=istio-system",
		"--meshConfig="+m.write(t, "mesh.yaml", strings.ReplaceAll(meshConfig, "ACCESS_LOG", m.accessLog())),
		"--grpcAddr=", fmt.Sprint("--secureGRPCAddr=127.0.0.1:", discoveryPort),
		fmt.Sprint("--httpsAddr=127.0.0.1:", injectorPort), fmt.Sprint("--httpAddr=127.0.0.1:", istiodPort),
		"--tlsCertFile="+m.certs.cert, "--tlsKeyFile="+m.certs.key, "--caCertFile="+m.certs.ca,
		fmt.Sprint("--monitoringAddr=127.0.0.1:", istiodPort+1), "--ctrlz_port=0")
	eventually(t, 60*time.Second, "istiod", func() bool {
		m.alive(t)
		return answered(fmt.Sprintf("http://127.0.0.1:%d/ready", istiodPort))
	})
}

func (m *mesh) accessLog() string { return filepath.Join(m.dir, "access.log") }

// startProxy starts pilot-agent, which starts Envoy, as in a pod of the namespace edge.
// address is a name only. Ports for its own use begin at ports.
func (m *mesh) startProxy(t *testing.T, kind, pod, address, labels string, ports int, env ...string) *child.Child {
	require.NoError(t, os.MkdirAll(filepath.Join(m.dir, pod, "etc"), 0o700))
	env = append(env, "POD_NAME="+pod, "POD_NAMESPACE=edge", "SERVICE_ACCOUNT=edge", "INSTANCE_IP="+address,
		"ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_METAJSON_LABELS="+labels, "FILE_MOUNTED_CERTS=true",
		"SSL_CERT_FILE="+m.certs.ca,
		fmt.Sprint("ENVOY_PROMETHEUS_PORT=", ports+1), fmt.Sprint("ENVOY_STATUS_PORT=", ports+2),
		fmt.Sprintf(`PROXY_CONFIG={
  "discoveryAddress": "127.0.0.1:%d", "controlPlaneAuthPolicy": "MUTUAL_TLS",
  "proxyMetadata": {"ISTIO_META_TLS_CLIENT_ROOT_CERT": "%s", "ISTIO_META_TLS_CLIENT_CERT_CHAIN": "%s",
    "ISTIO_META_TLS_CLIENT_KEY": "%s"},
  "binaryPath": "%s", "configPath": "%s", "proxyBootstrapTemplatePath": "%s",
  "proxyAdminPort": %d, "statusPort": %d, "concurrency": 2, "extraStatTags": ["domain", "rule", "override"],
  "terminationDrainDuration": "1s"
}`, discoveryPort, m.certs.ca, m.certs.cert, m.certs.key, m.envoy, filepath.Join(m.dir, pod, "etc"),
			filepath.Join(m.installed, "envoy_bootstrap.json"), ports, ports+3))
	// pilot-agent stores modules in /var/lib/istio/data, which nobody can change. What a
	// pod mounts of a ConfigMap is the folder configmap.
	return m.run(t, pod, env, "unshare", "--mount", "sh", "-ec",
		`mount -t tmpfs data /var/lib; mkdir -p /var/lib/istio/data /var/lib/sluice-filter configmap; `+
			`mount --bind configmap /var/lib/sluice-filter; mount --bind "$0" /etc/hosts; exec "$@"`,
		m.write(t, "hosts", "127.0.0.1 localhost "+registryName+"\n"), filepath.Join(m.installed, "pilot-agent"), "proxy",
		kind, "--domain", "edge.svc.cluster.local", "--proxyLogLevel=warning")
}

// run starts a program in a folder of its name, and ends it with the test.
func (m *mesh) run(t *testing.T, name string, env []string, path string, args ...string) *child.Child {
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = filepath.Join(m.dir, name), append(os.Environ(), env...)
	require.NoError(t, os.MkdirAll(cmd.Dir, 0o700))
	m.programs[name] = start(t, cmd)
	return m.programs[name]
}

func (m *mesh) write(t *testing.T, name, text string) string {
	path := filepath.Join(m.dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// alive fails the test when a program has ended by itself.
func (m *mesh) alive(t *testing.T) {
	for name, c := range m.programs {
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
