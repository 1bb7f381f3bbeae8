//go:build istio

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// Ports in the network of the test's own, on loopback.
const (
	discoveryPort = 25010
	istiodPort    = 25011 // and the next one
	injectorPort  = 25013
)

// registryName is 127.0.0.1 for the proxies.
const registryName = "registry.example"

// mesh is Istio's control plane on a real API server.
type mesh struct {
	*kubernetes
	tokens           tokens
	installed, envoy string // paths
}

// startMesh starts the API server and istiod.
func startMesh(t *testing.T) *mesh {
	m := &mesh{envoy: newest(t).envoy, tokens: newTokens(t), installed: programOf(t, "SLUICE_ISTIO", "make e2e-istio")}
	m.kubernetes = startKubernetes(t, "make e2e-istio")
	m.applyFiles(t, m.installed, "crds")
	m.kube.apply(t, meshResources(t, upstream().Listener.Addr().(*net.TCPAddr).Port, m.tokens.keys(t)))
	m.applyInjector(t)
	m.startIstiod(t)
	return m
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
