package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/envoy/wasmimage"
)

// Media types of a chart in a registry.
const (
	chartConfig  = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	chartContent = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
)

// sourceVersion is what Chart.yaml says outside of a release.
const sourceVersion = "ersion: 0.0.0"

// chartVersion is the release's version as Helm writes it.
func (r *release) chartVersion() string { return strings.TrimPrefix(r.version, "v") }

// writeChart writes the Helm chart as an archive, and adds it to the images. Helm's own archives say
// when they were made.
func (r *release) writeChart() error {
	var entries []wasmimage.Entry
	var description []byte // Chart.yaml
	folder := os.DirFS(filepath.Join(r.tree, "examples", "chart"))
	err := fs.WalkDir(folder, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(folder, name)
		if name == "Chart.yaml" {
			if n := strings.Count(string(content), sourceVersion); n != 2 {
				return fmt.Errorf("%q is %d times in Chart.yaml: want it in version and appVersion", sourceVersion, n)
			}
			content = []byte(strings.ReplaceAll(string(content), sourceVersion, "ersion: "+r.chartVersion()))
			description = content
		}
		entries = append(entries, wasmimage.Entry{
			Header: tar.Header{Name: "sluice/" + name, Mode: 0o644, ModTime: r.time}, Content: content,
		})
		return err
	})
	if err != nil {
		return err
	}
	archive, err := wasmimage.Layer(entries...)
	if err != nil {
		return err
	}
	reader, err := archive.Compressed()
	if err != nil {
		return err
	}
	defer reader.Close()
	content, err := io.ReadAll(reader)
	if err != nil {
		return err
	}
	if err := r.WriteFile("sluice-chart-"+r.version+".tgz", content, 0o600); err != nil {
		return err
	}
	image, err := chartImage(content, description, r.time)
	r.images = append(r.images, tagged(r.chartVersion(), image))
	return err
}

// chart is an image whose configuration is not that of a container.
type chart struct {
	config, manifest []byte
	content          v1.Layer
}

// RawConfigFile implements partial.CompressedImageCore, as the other methods do.
func (c *chart) RawConfigFile() ([]byte, error) { return c.config, nil }

// RawManifest returns the manifest.
func (c *chart) RawManifest() ([]byte, error) { return c.manifest, nil }

// MediaType is that of the manifest.
func (c *chart) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest returns the archive or the configuration.
func (c *chart) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	own, err := c.content.Digest()
	if err == nil && own == digest {
		return c.content, nil
	}
	return static.NewLayer(c.config, chartConfig), err
}

// chartImage makes the image that `helm pull` reads: the chart's description as its configuration,
// and its archive as the layer.
func chartImage(archive, description []byte, made time.Time) (v1.Image, error) {
	var about map[string]any
	if err := yaml.Unmarshal(description, &about); err != nil {
		return nil, err
	}
	config, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	c := &chart{config: config, content: static.NewLayer(archive, chartContent)}
	descriptors := map[string]v1.Descriptor{}
	for name, layer := range map[string]v1.Layer{"config": static.NewLayer(config, chartConfig), "content": c.content} {
		descriptor, err := partial.Descriptor(layer)
		if err != nil {
			return nil, err
		}
		descriptors[name] = *descriptor
	}
	c.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: descriptors["config"],
		Layers: []v1.Descriptor{descriptors["content"]},
		Annotations: map[string]string{
			"org.opencontainers.image.title":   fmt.Sprint(about["name"]),
			"org.opencontainers.image.version": fmt.Sprint(about["version"]),
			"org.opencontainers.image.created": made.Format(time.RFC3339),
		},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(c)
}
