package cli

import (
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
)

// listenOptions say where serve listens and who may call.
type listenOptions struct {
	http      string
	xds       string
	tokenFile string
	tlsCert   string
	tlsKey    string
	clientCA  string
	insecure  bool
}

// AddFlags adds the flags of serve's two listeners.
func (o *listenOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.http, "http", defaultHTTP, "`ADDRESS` of the HTTP API")
	f.StringVar(&o.xds, "xds", defaultXDS, "`ADDRESS` of the xDS server")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the bearer token that HTTP callers must bear")
	f.StringVar(&o.tlsCert, "tls-cert", "", "`FILE` with the server's certificate chain")
	f.StringVar(&o.tlsKey, "tls-key", "", "`FILE` with its private key")
	f.StringVar(&o.clientCA, "client-ca", "", "`FILE` with the certificates that vouch for clients, HTTP and xDS")
	f.BoolVar(&o.insecure, "insecure", false, "allow addresses that are not loopback without protection")
}

// guard is what callers must bring.
type guard struct {
	tls         *tls.Config // nil = plain text
	token       string
	clientCerts bool
}

// guard checks that the addresses are protected as they need to be and reads
// the files.
func (o *listenOptions) guard() (guard, error) {
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return guard{}, usageError(errors.New("--tls-cert and --tls-key belong together"), "give both or none")
	}
	if o.clientCA != "" && o.tlsCert == "" {
		return guard{}, usageError(errors.New("--client-ca needs TLS"), "give --tls-cert and --tls-key too")
	}
	if err := o.checkAddresses(); err != nil {
		return guard{}, err
	}
	var g guard
	var err error
	if o.tokenFile != "" {
		if g.token, err = readToken(o.tokenFile); err != nil {
			return guard{}, err
		}
	}
	if o.tlsCert == "" {
		return g, nil
	}
	pair, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
	if err != nil {
		return guard{}, fmt.Errorf("read server certificate: %w", err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		return guard{}, fmt.Errorf("read server certificate: %s is valid only from %s to %s",
			o.tlsCert, moment(pair.Leaf.NotBefore), moment(pair.Leaf.NotAfter))
	}
	g.tls = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if o.clientCA != "" {
		if g.tls.ClientCAs, err = certPool(o.clientCA); err != nil {
			return guard{}, fmt.Errorf("read --client-ca: %w", err)
		}
		g.tls.ClientAuth, g.clientCerts = tls.RequireAndVerifyClientCert, true
	}
	return g, nil
}

func (o *listenOptions) checkAddresses() error {
	for _, listener := range []struct {
		flag, address, danger, hint string
		safe                        bool
	}{
		{
			"--http", o.http, "anyone who reaches it could change the policy",
			"give --tls-cert and --tls-key with --token-file or --client-ca; --insecure allows it nevertheless",
			o.tlsCert != "" && (o.tokenFile != "" || o.clientCA != ""),
		},
		{
			"--xds", o.xds, "anyone who reaches it could read the policy and pose as a proxy",
			"give --tls-cert and --tls-key with --client-ca; --insecure allows it nevertheless",
			o.tlsCert != "" && o.clientCA != "",
		},
	} {
		host, _, err := net.SplitHostPort(listener.address)
		if err != nil {
			return usageError(fmt.Errorf("%s %q is not an address", listener.flag, listener.address),
				"give HOST:PORT, for example "+defaultHTTP)
		}
		if !isLoopback(host) && !listener.safe && !o.insecure {
			return usageError(fmt.Errorf("%s %s is not a loopback address: %s", listener.flag, listener.address, listener.danger),
				listener.hint)
		}
	}
	return nil
}

// isLoopback says whether only this machine can mean the host. A name other
// than localhost could be anyone's.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// listen opens a listener for a flag's address.
func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, withHint(fmt.Errorf("listen on %s: the port is in use", address),
			"something else listens there: choose another port with "+flag)
	}
	var invalid *net.AddrError
	if errors.As(err, &invalid) {
		return nil, usageError(fmt.Errorf("%s %q is not an address: %s", flag, address, invalid.Err),
			"give HOST:PORT, for example "+defaultHTTP)
	}
	if err != nil {
		return nil, withHint(fmt.Errorf("listen: %w", err), flag+" says where to listen")
	}
	return l, nil
}

func (g guard) identify() func(*http.Request) (access.Caller, bool) {
	if g.token == "" {
		return nil
	}
	return func(r *http.Request) (access.Caller, bool) {
		known := subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+g.token)) == 1
		return access.Caller{Name: "token", Role: access.Admin}, known
	}
}
