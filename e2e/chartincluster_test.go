//go:build istio

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/charttest"
)

// definitions are the kinds of cert-manager and the Prometheus operator that the chart makes, as
// files of their modules.
var definitions = map[string][]string{
	"github.com/cert-manager/cert-manager": {"deploy/crds/cert-manager.io_certificates.yaml"},
	"github.com/prometheus-operator/prometheus-operator": {
		"example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
	},
}

// applyDefinitions applies them, of the versions in build/crds.
func (k *kubernetes) applyDefinitions(t *testing.T) {
	for module, files := range definitions {
		download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
		download.Dir = filepath.Join(buildtest.Root(), "build", "crds")
		said, err := download.CombinedOutput()
		require.NoError(t, err, "%s", said)
		var found struct{ Dir string }
		require.NoError(t, json.Unmarshal(said, &found))
		for _, file := range files {
			k.kube.apply(t, read(t, found.Dir, file))
		}
	}
}

// TestChartInACluster has a real API server check all that the chart renders, and what docs/install.md
// writes for a proxy. Then Helm installs and upgrades the chart there, with this machine in the place
// of the kubelet.
func TestChartInACluster(t *testing.T) {
	k := startKubernetes(t, "make e2e-chart")
	k.applyDefinitions(t)
	for _, namespace := range []string{charttest.Namespace, "edge"} {
		k.kube.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n")
	}
	files, err := filepath.Glob(filepath.Join(buildtest.Root(), "examples/testdata/values/*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 5)
	for _, file := range files {
		rendered, err := charttest.Template(t, read(t, file))
		require.NoError(t, err)
		k.kube.accepts(t, rendered)
	}
	k.kube.accepts(t, block(t, "install.md", "image: envoyproxy/envoy"))
	t.Run("install and upgrade", k.install)
}

// install runs the page's installation, and then an upgrade that serve refuses.
func (k *kubernetes) install(t *testing.T) {
	values := block(t, "install.md", "image: {repository: registry.example.com/sluice}")
	c := newPods(t)
	c.secret["xds-client-ca"], c.secret["server-ca"] = c.secret["ca.pem"], c.secret["ca.pem"]
	c.secret["ci.token"] = c.secret["token"]
	c.start(t, c.containers(t, values)["serve"], c.http)

	said, err := k.helm(t, c, "install", values)
	require.NoError(t, err)
	require.Contains(t, said, "Proxies connect to sluice-serve.sluice.svc:18000")
	require.Contains(t, sluiceOK(t, c.args(t, c.containers(t, values)["reach"])...), "revision 1")
	_, err = k.helm(t, c, "upgrade", replaced(t, values, "limits: [3/1h]", "limits: [3/1fortnight]"))
	require.ErrorContains(t, err, "post-upgrade")
	require.ErrorContains(t, err, "shop.yaml:", "helm prints what serve says")
	_, err = k.helm(t, c, "upgrade", replaced(t, values, "limits: [3/1h]", "limits: [4/1h]"))
	require.NoError(t, err)
	require.Contains(t, sluiceOK(t, c.args(t, c.containers(t, values)["reach"])...), "revision 2")
}

// helm installs or upgrades. It waits for the Job, whose containers this test runs meanwhile.
func (k *kubernetes) helm(t *testing.T, c *pods, command, values string) (said string, err error) {
	done := make(chan error, 1)
	go func() {
		var err error
		said, err = charttest.Run(t, command, charttest.Release, charttest.Dir(), "--namespace", charttest.Namespace,
			"--values", charttest.Values(t, values), "--kubeconfig", filepath.Join(k.dir, "kubeconfig"), "--timeout", "4m")
		done <- err
	}()
	const at = "/apis/batch/v1/namespaces/" + charttest.Namespace + "/jobs/" + charttest.Release + "-apply"
	var job struct{ Metadata struct{ UID string } }
	eventually(t, time.Minute, "the Job of helm "+command, func() bool {
		select {
		case err := <-done:
			require.FailNow(t, "helm has ended", "%v", err)
		default:
		}
		return k.kube.read(t, at, &job) && job.Metadata.UID != c.job
	})
	c.job = job.Metadata.UID
	containers := c.containers(t, values)
	for _, name := range []string{"reach", "apply"} {
		out, errs, exit := sluice(t, c.args(t, containers[name])...)
		if exit != 0 {
			k.log(t, out+errs)
			k.finish(t, at, "Failed", "PodFailurePolicy")
			return said, <-done
		}
	}
	k.finish(t, at, "Complete", "CompletionsReached")
	return said, <-done
}

// log gives a text as the log of the Job's pod, as the kubelet of a node does.
func (k *kubernetes) log(t *testing.T, text string) {
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(kubelet.Close)
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: machine}\n"
	k.kube.apply(t, node)
	k.status(t, "/api/v1/nodes/machine", node+fmt.Sprintf(
		"status: {addresses: [{type: InternalIP, address: 127.0.0.1}], daemonEndpoints: {kubeletEndpoint: {Port: %d}}}\n",
		kubelet.Listener.Addr().(*net.TCPAddr).Port))
	k.kube.apply(t, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: apply\n  namespace: "+charttest.Namespace+
		"\n  labels: {job-name: "+charttest.Release+"-apply}\n"+
		"spec: {nodeName: machine, restartPolicy: Never, containers: [{name: apply, image: sluice}]}\n")
}

// finish writes a Job's status as the Job controller does.
func (k *kubernetes) finish(t *testing.T, at, condition, reason string) {
	now := time.Now().UTC().Format(time.RFC3339)
	before := map[string]string{"Failed": "FailureTarget", "Complete": "SuccessCriteriaMet"}[condition]
	status := fmt.Sprintf(`startTime: %q, conditions: [`+
		`{type: %s, status: "True", reason: %s, lastTransitionTime: %q}, `+
		`{type: %s, status: "True", reason: %s, lastTransitionTime: %q}]`, now, before, reason, now, condition, reason, now)
	if condition == "Complete" {
		status += fmt.Sprintf(`, completionTime: %q, succeeded: 1`, now)
	} else {
		status += `, failed: 1`
	}
	k.status(t, at, "apiVersion: batch/v1\nkind: Job\nmetadata: {name: "+charttest.Release+"-apply, namespace: "+
		charttest.Namespace+"}\nstatus: {"+status+"}\n")
}

// status writes the status of a resource.
func (k *kubernetes) status(t *testing.T, at, resource string) {
	code, answer := k.kube.call(t, http.MethodPatch, at+"/status?fieldManager=e2e&force=true", resource)
	require.Equal(t, http.StatusOK, code, "%s", answer)
}
