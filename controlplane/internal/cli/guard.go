package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/reload"
)

// guard is what callers of serve's two listeners must bring. Its files are
// read again when they change.
type guard struct {
	http     *tls.Config                               // nil = plain text
	xds      *tls.Config                               // nil = plain text
	identify func(*http.Request) (access.Caller, bool) // nil = anyone may call
	proxyCAs func() *x509.CertPool                     // nil = proxies need no certificate
}

// guard reads the files that the flags name and warns of what is open.
func (o *listenOptions) guard(log *slog.Logger) (guard, error) {
	open, err := o.check()
	if err != nil {
		return guard{}, err
	}
	for _, a := range open {
		log.Warn("INSECURE: "+a.flag+" "+a.address+" is open: "+a.danger, "hint", a.hint)
	}
	var g guard
	var gate access.Gate
	if o.httpClientCA != "" {
		pool, err := openAuthorities(log, "--http-client-ca", o.httpClientCA)
		if err != nil {
			return guard{}, err
		}
		gate.ClientCAs = pool.Get
	}
	if o.access != "" {
		list, err := o.openAccess(log)
		if err != nil {
			return guard{}, err
		}
		gate.List = list.Get
		g.identify = gate.Identify
	}
	if o.tlsCert == "" {
		return g, nil
	}
	pair, err := openCertificate(log, o.tlsCert, o.tlsKey)
	if err != nil {
		return guard{}, err
	}
	if o.xdsClientCA != "" {
		pool, err := openAuthorities(log, "--"+o.proxies.ca, o.xdsClientCA)
		if err != nil {
			return guard{}, err
		}
		g.proxyCAs = pool.Get
	}
	g.http = serverTLS(pair, gate.ClientCAs, tls.VerifyClientCertIfGiven, "h2", "http/1.1")
	g.xds = serverTLS(pair, g.proxyCAs, tls.RequireAndVerifyClientCert, "h2")
	return g, nil
}

func (o *listenOptions) openAccess(log *slog.Logger) (*reload.Value[*access.List], error) {
	return openFiles(log, "--access", func(contents [][]byte) (*access.List, error) {
		list, err := access.ParseList(o.access, contents[0])
		if err == nil && list.MapsCertificates() && o.httpClientCA == "" {
			err = fmt.Errorf("%s gives roles to certificates, and without --http-client-ca none is asked for", o.access)
		}
		return list, err
	}, o.access)
}

// openFiles reads what a flag names, and reads it again when the files change.
func openFiles[T any](log *slog.Logger, flag string, parse func(contents [][]byte) (T, error), files ...string) (*reload.Value[T], error) {
	value, err := reload.Open(log, parse, files...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", flag, err)
	}
	return value, nil
}

// openCertificate reads the server's certificate. It refuses one that is not
// valid now, at the start and when it is read again.
func openCertificate(log *slog.Logger, cert, key string) (*reload.Value[*tls.Certificate], error) {
	return openFiles(log, "server certificate", func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, err
		}
		if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
			return nil, fmt.Errorf("%s is valid only from %s to %s", cert, moment(pair.Leaf.NotBefore), moment(pair.Leaf.NotAfter))
		}
		return &pair, nil
	}, cert, key)
}

func openAuthorities(log *slog.Logger, flag, file string) (*reload.Value[*x509.CertPool], error) {
	return openFiles(log, flag, func(contents [][]byte) (*x509.CertPool, error) { return parsePool(file, contents[0]) }, file)
}

// openNames reads a file with lines SAN ID. What it says holds for streams that begin
// afterwards.
func openNames(log *slog.Logger, flag, file string) (*reload.Value[*access.NodeIDs], error) {
	return openFiles(log, flag, func(contents [][]byte) (*access.NodeIDs, error) { return access.ParseNodeIDs(file, contents[0]) }, file)
}

// parsePool reads certificates in PEM.
func parsePool(file string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " holds no PEM certificate")
	}
	return pool, nil
}

// serverTLS makes the configuration of a listener, with the certificate and
// the authorities as they are at each handshake. Sessions are not resumed: each
// connection shows its certificate anew.
func serverTLS(pair *reload.Value[*tls.Certificate], clientCAs func() *x509.CertPool, auth tls.ClientAuthType, protocols ...string) *tls.Config {
	config := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             protocols,
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil },
	}
	if clientCAs == nil {
		return config
	}
	asking := config.Clone()
	asking.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.ClientAuth, now.ClientCAs = auth, clientCAs()
		return now, nil
	}
	return asking
}
