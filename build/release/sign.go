package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// passwordVariable is where cosign, too, looks for the password of its keys.
const passwordVariable = "COSIGN_PASSWORD"

// signingKey reads a key from a file or, as cosign does, from the variable in
// env://VARIABLE. Without a name it makes one for tests.
func signingKey(file string, log io.Writer) (*ecdsa.PrivateKey, error) {
	if file == "" {
		fmt.Fprintln(log, "signed with a key made for this run: for tests only")
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	var text []byte
	var err error
	if variable, ok := strings.CutPrefix(file, "env://"); ok {
		text = []byte(os.Getenv(variable))
	} else if text, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	key, err := cryptoutils.UnmarshalPEMToPrivateKey(text, cryptoutils.StaticPasswordFunc([]byte(os.Getenv(passwordVariable))))
	if err != nil {
		return nil, fmt.Errorf("read the signing key in %s, whose password is in %s: %w", file, passwordVariable, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, fmt.Errorf("the signing key in %s is not on P-256", file)
	}
	return ec, nil
}

// sign signs each image by its digest, and both lists of digests.
func sign(dir string, key *ecdsa.PrivateKey) error {
	signer, err := signature.LoadECDSASigner(key, crypto.SHA256)
	if err != nil {
		return err
	}
	if err := signImages(dir, signer); err != nil {
		return err
	}
	if err := writeSums(dir, signatureDir, signatureSums); err != nil {
		return err
	}
	for _, name := range []string{sumsFile, signatureSums} {
		sums, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		signed, err := signText(signer, sums)
		if err != nil {
			return err
		}
		if err := publish(filepath.Join(dir, name+signatureEnd), []byte(signed)); err != nil {
			return err
		}
	}
	public, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	if err != nil {
		return err
	}
	return publish(filepath.Join(dir, publicKeyFile), public)
}

// signText returns a signature as cosign writes it.
func signText(signer signature.Signer, message []byte) (string, error) {
	signed, err := signer.SignMessage(bytes.NewReader(message))
	return base64.StdEncoding.EncodeToString(signed), err
}

// How cosign stores the signature of an image: as an image of its own, under a tag that
// follows from the digest, with what was signed as its layer.
const (
	simpleSigning       = types.MediaType("application/vnd.dev.cosign.simplesigning.v1+json")
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

// signImages writes the images' signatures into a layout of their own. What is signed
// names no registry: the image may lie in any.
func signImages(dir string, signer signature.Signer) error {
	images, err := layout.ImageIndexFromPath(filepath.Join(dir, layoutDir))
	if err != nil {
		return err
	}
	manifest, err := images.IndexManifest()
	if err != nil {
		return err
	}
	path, err := layout.Write(filepath.Join(dir, signatureDir), empty.Index)
	if err != nil {
		return err
	}
	for _, image := range manifest.Manifests {
		digest := image.Digest.String()
		said, err := json.Marshal(payload.SimpleContainerImage{Critical: payload.Critical{
			Image: payload.Image{DockerManifestDigest: digest}, Type: payload.CosignSignatureType,
		}})
		if err != nil {
			return err
		}
		signed, err := signText(signer, said)
		if err != nil {
			return err
		}
		img, err := mutate.Append(emptyImage(), mutate.Addendum{
			Layer: static.NewLayer(said, simpleSigning), Annotations: map[string]string{signatureAnnotation: signed},
		})
		if err != nil {
			return err
		}
		if err := path.AppendImage(img, tagged(strings.ReplaceAll(digest, ":", "-")+".sig")); err != nil {
			return err
		}
	}
	return nil
}
