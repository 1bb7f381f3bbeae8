package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/redistest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/kubernetes"
)

// container is what a test needs of a pod's first container.
type container struct {
	Args           []string
	ReadinessProbe struct {
		HTTPGet struct{ Path, Scheme string } `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
}

func containersOf(t *testing.T, manifests string) map[string]container {
	t.Helper()
	found := map[string]container{}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var object struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct{ Containers []container }
				}
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(document), &object))
		for _, c := range object.Spec.Template.Spec.Containers {
			found[object.Kind] = c
		}
	}
	return found
}

func TestContainersOfRenderKubernetesStart(t *testing.T) {
	redis := redistest.Start(t, redistest.Redis(t)[0])
	cert, key := buildtest.Certificate(t)
	dir := t.TempDir()
	for name, from := range map[string]string{"xds-client-ca": cert, "http-client-ca": cert, "tls.crt": cert, "tls.key": key} {
		require.NoError(t, os.Symlink(from, filepath.Join(dir, name)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "quota-domains"), []byte("* shop\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "access"), []byte("certificate ci.test apply\n"), 0o600))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting(t, cert)}}
	text, _, err := runRender(t, "", "kubernetes", "--image", "sluice", "-n", "sluice", "--proxies", "edge",
		"--serve-file", "http-client-ca", "--quota-file", "http-client-ca", "--quota-store", "redis://"+redis.Addr())
	require.NoError(t, err)
	port := regexp.MustCompile(`=:1[0-9]{4}$`)
	containers := containersOf(t, text)
	for _, kind := range []string{"StatefulSet", "Deployment"} {
		c := containers[kind]
		require.NotEmpty(t, c.Args, kind)
		for i, arg := range c.Args {
			arg = strings.ReplaceAll(arg, kubernetes.Dir, dir)
			arg = strings.ReplaceAll(arg, kubernetes.Data, filepath.Join(dir, "data"))
			c.Args[i] = port.ReplaceAllString(arg, "=:0")
		}
		running := start(t, NewRootCommand(), c.Args...)
		address := running.find(t, `http=\S*:([0-9]+)`)
		require.Equal(t, "HTTPS", c.ReadinessProbe.HTTPGet.Scheme)
		response, err := client.Get("https://127.0.0.1:" + address + c.ReadinessProbe.HTTPGet.Path)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, kind)
		require.NoError(t, running.end(t))
	}
}

func TestRenderKubernetesTakesFlagsWithFiles(t *testing.T) {
	for flag, want := range map[string]string{
		"--serve-file=nodes":    "--serve-file nodes: serve has no such flag",
		"--serve-file=keep":     "--serve-file keep takes no file",
		"--quota-file=tls-cert": "--quota-file tls-cert is there already",
	} {
		_, _, err := runRender(t, "", "kubernetes", "--image", "a", "-n", "a", "--proxies", "b", "--quota-store", "redis://a", flag)
		require.EqualError(t, err, want)
	}
}
