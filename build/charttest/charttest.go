// Package charttest runs Helm on the chart of examples/chart, and reads what it renders.
//
// Its invariant: a test gets what the real Helm makes of the chart in this tree. No program may
// import it.
package charttest

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// What every test installs: the release, and its namespace.
const (
	Release   = "sluice"
	Namespace = "sluice"
)

// Dir returns the chart's folder.
func Dir() string { return inTree("examples", "chart") }

// inTree is a path in this tree.
func inTree(elements ...string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(append([]string{filepath.Dir(here), "..", ".."}, elements...)...)
}

// Helm returns the Helm that SLUICE_HELM names, or that build/fetch has installed.
func Helm(tb testing.TB) string {
	tb.Helper()
	found, err := filepath.Glob(inTree("build", "out", "helm*-*", "helm"))
	require.NoError(tb, err)
	path := cmp.Or(os.Getenv("SLUICE_HELM"), append([]string{""}, found...)[len(found)])
	_, err = os.Stat(path)
	require.NoError(tb, err, "run `make servers` or set SLUICE_HELM to the path of one")
	return path
}

// Run runs Helm, which keeps nothing outside of the test, and returns what it prints. The error is
// what it says.
func Run(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), Helm(tb), args...)
	home := tb.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, errs bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return out.String(), errors.New(strings.TrimSpace(errs.String() + out.String()))
	}
	return out.String(), nil
}

// Values writes values into a file.
func Values(tb testing.TB, values string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "values.yaml")
	require.NoError(tb, os.WriteFile(file, []byte(values), 0o600))
	return file
}

// Template renders the chart with these values.
func Template(tb testing.TB, values string) (string, error) {
	tb.Helper()
	return Run(tb, "template", Release, Dir(), "--namespace", Namespace, "--values", Values(tb, values))
}

// Container is a container of a pod, with its files by path.
type Container struct {
	Name           string
	Args           []string
	ReadinessProbe struct {
		HTTPGet struct{ Path, Scheme string } `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
	Files map[string]File `yaml:"-"`

	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

// File is what a file of a container is made of: the key of a Secret or a ConfigMap. If the chart
// makes that ConfigMap, Text is its content.
type File struct{ Secret, ConfigMap, Key, Text string }

// resource is what this package reads of a resource.
type resource struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Template struct {
			Spec struct {
				InitContainers []Container `yaml:"initContainers"`
				Containers     []Container
				Volumes        []volume
			}
		}
	}
}

type volume struct {
	Name      string
	Projected struct {
		Sources []struct {
			Secret    *keys
			ConfigMap *keys `yaml:"configMap"`
		}
	}
	ConfigMap *keys `yaml:"configMap"`
}

// keys are keys of a Secret or a ConfigMap, each with the path of its file. Without items they are
// all.
type keys struct {
	Name  string
	Items []struct{ Key, Path string }
}

// Containers returns the containers of all pods in rendered resources, by name.
func Containers(tb testing.TB, resources string) map[string]Container {
	tb.Helper()
	var all []resource
	texts := map[string]map[string]string{} // of ConfigMaps, by name and key
	for documents := yaml.NewDecoder(strings.NewReader(resources)); ; {
		var r resource
		err := documents.Decode(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(tb, err)
		all = append(all, r)
		if r.Kind == "ConfigMap" {
			texts[r.Metadata.Name] = r.Data
		}
	}
	found := map[string]Container{}
	for _, r := range all {
		pod := r.Spec.Template.Spec
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			c.Files = map[string]File{}
			for _, mount := range c.VolumeMounts {
				for _, v := range pod.Volumes {
					if v.Name == mount.Name {
						v.add(c.Files, mount.MountPath, texts)
					}
				}
			}
			found[c.Name] = c
		}
	}
	return found
}

// add adds the files of a volume that is mounted at a path.
func (v *volume) add(files map[string]File, at string, texts map[string]map[string]string) {
	if v.ConfigMap != nil {
		for key, text := range texts[v.ConfigMap.Name] {
			files[at+"/"+key] = File{ConfigMap: v.ConfigMap.Name, Key: key, Text: text}
		}
	}
	for _, source := range v.Projected.Sources {
		if source.Secret != nil {
			for _, item := range source.Secret.Items {
				files[at+"/"+item.Path] = File{Secret: source.Secret.Name, Key: item.Key}
			}
		}
		if from := source.ConfigMap; from != nil {
			for _, item := range from.Items {
				files[at+"/"+item.Path] = File{ConfigMap: from.Name, Key: item.Key, Text: texts[from.Name][item.Key]}
			}
		}
	}
}
