// Package flagfile reads the files that flags and settings name: certificates, authorities, tokens
// and lists of names.
//
// Its invariant: no error repeats a token or a key. It knows no flag: the caller passes the name that
// an error gives to one.
package flagfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/reload"
)

// MaxBytes bounds a file with a secret that is read once.
const MaxBytes = 1 << 20

// Watched reads files now, and again when they change, until there is an error.
type Watched struct {
	Log *slog.Logger
	Err error // of the first file that could not be read
}

// Watch reads the files of a flag. What it returns has the value as the files are then. It is nil
// without the flag, when the first name is empty.
func Watch[T any](w *Watched, flag string, parse func(contents [][]byte) (T, error), files ...string) func() T {
	if w.Err != nil || files[0] == "" {
		return nil
	}
	value, err := reload.Open(w.Log, parse, files...)
	if err != nil {
		w.Err = fmt.Errorf("read %s: %w", flag, err)
		return nil
	}
	return value.Get
}

// Authorities reads certificate authorities.
func (w *Watched) Authorities(flag, file string) func() *x509.CertPool {
	parse := func(contents [][]byte) (*x509.CertPool, error) { return ParsePool(file, contents[0]) }
	return Watch(w, flag, parse, file)
}

// NodeIDs reads lines SAN ID. A change holds for streams that begin afterwards.
func (w *Watched) NodeIDs(flag, file string) func() *access.NodeIDs {
	parse := func(contents [][]byte) (*access.NodeIDs, error) { return access.ParseNodeIDs(file, contents[0]) }
	return Watch(w, flag, parse, file)
}

// Certificate reads a server's certificate and its key. One that is not valid now is an error, at
// the start and when it is read again.
func (w *Watched) Certificate(flag, cert, key string) func() *tls.Certificate {
	parse := func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, err
		}
		now := time.Now()
		begins, ends := pair.Leaf.NotBefore, pair.Leaf.NotAfter
		if now.Before(begins) || now.After(ends) {
			const layout = "2006-01-02 15:04:05Z"
			return nil, fmt.Errorf("%s is valid only from %s to %s",
				cert, begins.UTC().Format(layout), ends.UTC().Format(layout))
		}
		return &pair, nil
	}
	return Watch(w, flag, parse, cert, key)
}

// ParsePool reads certificates in PEM.
func ParsePool(file string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " holds no PEM certificate")
	}
	return pool, nil
}

// Token reads a file with a bearer token.
func Token(file string) (string, error) {
	text, err := input.File(file, MaxBytes)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token, err := ParseToken(text)
	if err != nil {
		return "", fmt.Errorf("read token: %s %w", file, err)
	}
	return token, nil
}

// ParseToken reads a bearer token, without the line end that editors leave. No error repeats it.
func ParseToken(text []byte) (string, error) {
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", errors.New("is empty")
	}
	if len(token) > access.MaxToken {
		return "", fmt.Errorf("has %d bytes, but at most %d are allowed", len(token), access.MaxToken)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("must hold one line of printable ASCII without spaces")
	}
	return token, nil
}
