package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// passwordVariable is where cosign, too, looks for the password of its keys.
const passwordVariable = "COSIGN_PASSWORD"

// readKey reads the key from a file or, as cosign does, from the variable in
// env://VARIABLE. Without a name it makes one for tests.
func (r *release) readKey() (*ecdsa.PrivateKey, error) {
	if r.signKey == "" {
		fmt.Fprintln(r.log, "signed with a key made for this run: for tests only")
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	var text []byte
	var err error
	if variable, ok := strings.CutPrefix(r.signKey, "env://"); ok {
		text = []byte(os.Getenv(variable))
	} else {
		text, err = os.ReadFile(r.signKey)
	}
	if err != nil {
		return nil, err
	}
	key, err := cryptoutils.UnmarshalPEMToPrivateKey(text,
		cryptoutils.StaticPasswordFunc([]byte(os.Getenv(passwordVariable))))
	if err != nil {
		return nil, fmt.Errorf("read the signing key in %s, whose password is in %s: %w", r.signKey, passwordVariable, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, fmt.Errorf("the signing key in %s is not on P-256", r.signKey)
	}
	return ec, nil
}

// sign returns a signature as cosign writes it.
func (r *release) sign(message []byte) (string, error) {
	digest := sha256.Sum256(message)
	signed, err := r.key.Sign(rand.Reader, digest[:], crypto.SHA256)
	return base64.StdEncoding.EncodeToString(signed), err
}

// writeSums writes the digest of every file in a folder, as sha256sum -c reads it, and the
// signature of that.
func (r *release) writeSums(folder, name string) error {
	var text bytes.Buffer
	err := fs.WalkDir(r.FS(), folder, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := r.ReadFile(file)
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(content), file)
		return err
	})
	if err != nil {
		return err
	}
	signed, err := r.sign(text.Bytes())
	if err != nil {
		return err
	}
	return errors.Join(r.WriteFile(name, text.Bytes(), 0o600), r.WriteFile(name+signatureEnd, []byte(signed), 0o600))
}

// How cosign stores the signature of an image: as an image of its own, under a tag that
// follows from the digest, with what was signed as its layer.
const (
	simpleSigning       = types.MediaType("application/vnd.dev.cosign.simplesigning.v1+json")
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

// signImages writes the images' signatures into a layout of their own, and the key that
// verifies them. What is signed names no registry: the image may lie in any.
func (r *release) signImages() error {
	var signatures []mutate.IndexAddendum
	for _, image := range r.images {
		digest, err := image.Add.Digest()
		if err != nil {
			return err
		}
		said, err := json.Marshal(payload.SimpleContainerImage{Critical: payload.Critical{
			Image: payload.Image{DockerManifestDigest: digest.String()}, Type: payload.CosignSignatureType,
		}})
		if err != nil {
			return err
		}
		signed, err := r.sign(said)
		if err != nil {
			return err
		}
		img, err := mutate.Append(emptyImage(), mutate.Addendum{
			Layer: static.NewLayer(said, simpleSigning), Annotations: map[string]string{signatureAnnotation: signed},
		})
		if err != nil {
			return err
		}
		signatures = append(signatures, tagged(digest.Algorithm+"-"+digest.Hex+".sig", img))
	}
	public, err := cryptoutils.MarshalPublicKeyToPEM(r.key.Public())
	if err != nil {
		return err
	}
	return errors.Join(r.WriteFile(publicKeyFile, public, 0o600), r.writeLayout(signatureDir, signatures))
}
