package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// signer signs as cosign does with a key: ECDSA on P-256 over SHA-256.
type signer struct{ key *ecdsa.PrivateKey }

// passwordVariable is where cosign, too, looks for the password of its keys.
const passwordVariable = "COSIGN_PASSWORD"

// signingKey reads a key, or makes one for tests.
func signingKey(file string, log io.Writer) (*signer, error) {
	if file == "" {
		fmt.Fprintln(log, "signed with a key made for this run: for tests only")
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		return &signer{key}, err
	}
	text, err := readKey(file)
	if err != nil {
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", file)
	}
	key, err := parseKey(block)
	if err != nil {
		return nil, fmt.Errorf("read the signing key in %s: %w", file, err)
	}
	if key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("the signing key in %s is not on P-256", file)
	}
	return &signer{key}, nil
}

// readKey reads a file or, as cosign does, the variable in env://VARIABLE.
func readKey(file string) ([]byte, error) {
	if variable, ok := strings.CutPrefix(file, "env://"); ok {
		return []byte(os.Getenv(variable)), nil
	}
	return os.ReadFile(file)
}

func parseKey(block *pem.Block) (*ecdsa.PrivateKey, error) {
	der := block.Bytes
	switch block.Type {
	case "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(der)
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		plain, err := encrypted.Decrypt(der, []byte(os.Getenv(passwordVariable)))
		if err != nil {
			return nil, fmt.Errorf("%w: %s is its password", err, passwordVariable)
		}
		der = plain
	case "PRIVATE KEY":
	default:
		return nil, fmt.Errorf("%s is no key that signs", block.Type)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("it is no elliptic curve's")
	}
	return ec, nil
}

// sign returns a signature as cosign writes it.
func (s *signer) sign(message []byte) (string, error) {
	digest := sha256.Sum256(message)
	signature, err := ecdsa.SignASN1(rand.Reader, s.key, digest[:])
	return base64.StdEncoding.EncodeToString(signature), err
}

func (s *signer) public() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(s.key.Public())
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// sign signs each image by its digest, and both lists of digests.
func sign(dir string, key *signer, list []released) error {
	if err := writeSignatures(filepath.Join(dir, signatureDir), key, list); err != nil {
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
		signature, err := key.sign(sums)
		if err != nil {
			return err
		}
		if err := publish(filepath.Join(dir, name+signatureEnd), []byte(signature)); err != nil {
			return err
		}
	}
	public, err := key.public()
	if err != nil {
		return err
	}
	return publish(filepath.Join(dir, publicKeyFile), public)
}
