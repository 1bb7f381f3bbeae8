package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// How cosign stores the signature of an image: as an image of its own, under a tag that
// follows from the digest, with what was signed as its layer.
const (
	simpleSigning       = types.MediaType("application/vnd.dev.cosign.simplesigning.v1+json")
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

func signatureTag(digest v1.Hash) string {
	return strings.ReplaceAll(digest.String(), ":", "-") + ".sig"
}

// signedPayload is what is signed of an image. It names no registry: the image may lie in any.
func signedPayload(digest v1.Hash) ([]byte, error) {
	type m = map[string]any
	return json.Marshal(m{"critical": m{
		"identity": m{"docker-reference": ""},
		"image":    m{"docker-manifest-digest": digest.String()},
		"type":     "cosign container image signature",
	}, "optional": nil})
}

// writeSignatures writes the images' signatures into a layout of their own.
func writeSignatures(dir string, key *signer, list []released) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, image := range list {
		payload, err := signedPayload(image.digest)
		if err != nil {
			return err
		}
		signature, err := key.sign(payload)
		if err != nil {
			return err
		}
		img, err := mutate.Append(
			mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
			mutate.Addendum{Layer: static.NewLayer(payload, simpleSigning), Annotations: map[string]string{signatureAnnotation: signature}})
		if err != nil {
			return err
		}
		if _, err := appendImage(path, nil, signatureTag(image.digest), img); err != nil {
			return err
		}
	}
	return nil
}

// writeDockerArchive writes what docker load and podman load read.
func writeDockerArchive(file, version string, img v1.Image) error {
	tag, err := name.NewTag("sluice.local/sluice:" + version)
	if err != nil {
		return fmt.Errorf("version %s is no tag: %w", version, err)
	}
	return tarball.WriteToFile(file, tag, img)
}
