package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/reload"
)

// proxyListener says how a command names its listener for proxies.
type proxyListener struct {
	name   string // in the log
	flag   string // with its address
	ca     string // the flag of the authorities of proxies' certificates
	danger string // of a listener that asks for no certificate
}

// xdsListener is serve's.
var xdsListener = proxyListener{
	name: "xds", flag: "xds", ca: "xds-client-ca",
	danger: "anyone who reaches it could read the policy and pose as a proxy",
}

// listenOptions say where serve listens and who may call.
type listenOptions struct {
	proxies      proxyListener
	http         string
	xds          string
	access       string
	tlsCert      string
	tlsKey       string
	httpClientCA string
	xdsClientCA  string
	insecure     bool
}

// AddFlags adds the flags of the two listeners, with their default addresses.
func (o *listenOptions) AddFlags(cmd *cobra.Command, http, proxies string) {
	f := cmd.Flags()
	f.StringVar(&o.http, "http", http, "`ADDRESS` of the HTTP API")
	f.StringVar(&o.xds, o.proxies.flag, proxies, "`ADDRESS` that proxies connect to")
	f.StringVar(&o.access, "access", "",
		"`FILE` with the tokens and certificates that may call the HTTP API, and their roles")
	f.StringVar(&o.tlsCert, "tls-cert", "", "`FILE` with the server's certificate chain, for HTTP and for proxies")
	f.StringVar(&o.tlsKey, "tls-key", "", "`FILE` with its private key")
	f.StringVar(&o.httpClientCA, "http-client-ca", "", "`FILE` with the certificate authorities of --access")
	f.StringVar(&o.xdsClientCA, o.proxies.ca, "", "`FILE` with the certificate authorities of proxies")
	f.BoolVar(&o.insecure, "insecure", false, "allow listening without protection on addresses that are not loopback")
}

// check rejects flags that do not go together, and open addresses without --insecure.
func (o *listenOptions) check() (open []openAddress, err error) {
	switch {
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return nil, usageError(errors.New("--tls-cert and --tls-key belong together"), "give both or none")
	case o.httpClientCA != "" && o.tlsCert == "":
		return nil, usageError(errors.New("--http-client-ca needs TLS"), "give --tls-cert and --tls-key too")
	case o.xdsClientCA != "" && o.tlsCert == "":
		return nil, usageError(errors.New("--"+o.proxies.ca+" needs TLS"), "give --tls-cert and --tls-key too")
	case o.httpClientCA != "" && o.access == "":
		return nil, usageError(errors.New("--http-client-ca needs --access"),
			"the lines certificate SAN ROLE of that file say who may do what")
	}
	open, err = o.open()
	if err != nil || len(open) == 0 || o.insecure {
		return open, err
	}
	first := &open[0]
	return nil, usageError(fmt.Errorf("%s %s is not a loopback address: %s", first.flag, first.address, first.danger),
		first.hint+"; --insecure allows it nevertheless")
}

// openAddress is an address that other machines reach and that lacks protection.
type openAddress struct{ flag, address, danger, hint string }

// open lists the open addresses.
func (o *listenOptions) open() ([]openAddress, error) {
	web := openAddress{flag: "--http", address: o.http, hint: "give --tls-cert, --tls-key and --access"}
	switch {
	case o.access == "":
		web.danger = "anyone who reaches it could change the policy"
	case o.tlsCert == "":
		web.danger = "anyone on the way could read the tokens"
	}
	stream := openAddress{
		flag: "--" + o.proxies.flag, address: o.xds, hint: "give --tls-cert, --tls-key and --" + o.proxies.ca,
	}
	if o.xdsClientCA == "" {
		stream.danger = o.proxies.danger
	}
	var open []openAddress
	for _, a := range []openAddress{web, stream} {
		host, _, err := net.SplitHostPort(a.address)
		if err != nil {
			return nil, usageError(fmt.Errorf("%s %q is not an address", a.flag, a.address), addressHint)
		}
		if a.danger != "" && !manage.IsLoopback(host) {
			open = append(open, a)
		}
	}
	return open, nil
}

// listen opens the two listeners.
func (o *listenOptions) listen(log *slog.Logger, guard guard) (*servers, error) {
	s := &servers{log: log, guard: guard, proxies: o.proxies.name}
	return s, s.listen(listenAddress{"--http", o.http}, listenAddress{"--" + o.proxies.flag, o.xds})
}

// listenAddress is an address with the flag or setting that says it.
type listenAddress struct{ setting, address string }

// listen opens the listeners for HTTP and for proxies, for as many connections as the process may
// open files.
func (s *servers) listen(http, proxies listenAddress) error {
	places, err := listener.PlacesOfProcess()
	if err != nil {
		return err
	}
	web, err := listen(http.setting, http.address)
	if err != nil {
		return err
	}
	stream, err := listen(proxies.setting, proxies.address)
	if err != nil {
		return errors.Join(err, web.Close())
	}
	s.httpListener, s.xdsListener = listener.Bound(web, places.HTTP), listener.Bound(stream, places.Proxies)
	return nil
}

const addressHint = "give HOST:PORT, for example " + defaultHTTP

// listen opens a listener for a flag's address.
func listen(flag, address string) (net.Listener, error) {
	var l net.Listener
	_, _, err := net.SplitHostPort(address) // net.Listen accepts an empty one too
	if err == nil {
		l, err = net.Listen("tcp", address)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, withHint(fmt.Errorf("listen on %s: the port is in use", address),
			"something else listens there: choose another port with "+flag)
	}
	var invalid *net.AddrError
	if errors.As(err, &invalid) {
		return nil, usageError(fmt.Errorf("%s %q is not an address: %s", flag, address, invalid.Err), addressHint)
	}
	if err != nil {
		return nil, withHint(fmt.Errorf("listen: %w", err), flag+" says where to listen")
	}
	return l, nil
}

// guard is what callers of the two listeners must show. Its files are read again when they
// change.
type guard struct {
	http     *tls.Config                               // nil: plain text
	xds      *tls.Config                               // nil: plain text
	identify func(*http.Request) (access.Caller, bool) // nil: anyone may call
	proxyCAs func() *x509.CertPool                     // nil: proxies need no certificate
}

// guard reads the files that the flags name and warns of what is open.
func (o *listenOptions) guard(log *slog.Logger) (g guard, err error) {
	open, err := o.check()
	if err != nil {
		return g, err
	}
	for _, a := range open {
		log.Warn("INSECURE: "+a.flag+" "+a.address+" is open: "+a.danger, "hint", a.hint)
	}
	files := watchedFiles{log: log}
	gate := access.Gate{
		ClientCAs: files.authorities("--http-client-ca", o.httpClientCA),
		List:      watch(&files, "--access", o.readAccess, o.access),
	}
	if gate.List != nil {
		g.identify = gate.Identify
	}
	pair := watch(&files, "server certificate", o.readCertificate, o.tlsCert, o.tlsKey)
	g.proxyCAs = files.authorities("--"+o.proxies.ca, o.xdsClientCA)
	if pair != nil {
		g.http = serverTLS(pair, gate.ClientCAs, tls.VerifyClientCertIfGiven, "h2", "http/1.1")
		g.xds = serverTLS(pair, g.proxyCAs, tls.RequireAndVerifyClientCert, "h2")
	}
	return g, files.err
}

func (o *listenOptions) readAccess(contents [][]byte) (*access.List, error) {
	list, err := access.ParseList(o.access, contents[0])
	if err == nil && list.MapsCertificates() && o.httpClientCA == "" {
		err = fmt.Errorf("%s gives roles to certificates, but without --http-client-ca clients need no certificate", o.access)
	}
	return list, err
}

// readCertificate rejects a server's certificate that is not valid now, at the start and when it
// is read again.
func (o *listenOptions) readCertificate(contents [][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	now := time.Now()
	begins, ends := pair.Leaf.NotBefore, pair.Leaf.NotAfter
	if now.Before(begins) || now.After(ends) {
		return nil, fmt.Errorf("%s is valid only from %s to %s", o.tlsCert, moment(begins), moment(ends))
	}
	return &pair, nil
}

// watchedFiles reads what flags name, until there is an error.
type watchedFiles struct {
	log *slog.Logger
	err error
}

// watch reads the files of a flag, and reads them again when they change. It is nil without the
// flag.
func watch[T any](
	w *watchedFiles, flag string, parse func(contents [][]byte) (T, error), files ...string,
) func() T {
	if w.err != nil || files[0] == "" {
		return nil
	}
	value, err := reload.Open(w.log, parse, files...)
	if err != nil {
		w.err = fmt.Errorf("read %s: %w", flag, err)
		return nil
	}
	return value.Get
}

func (w *watchedFiles) authorities(flag, file string) func() *x509.CertPool {
	parse := func(contents [][]byte) (*x509.CertPool, error) { return parsePool(file, contents[0]) }
	return watch(w, flag, parse, file)
}

// names reads lines SAN ID. A change holds for streams that begin afterwards.
func (w *watchedFiles) names(flag, file string) func() *access.NodeIDs {
	parse := func(contents [][]byte) (*access.NodeIDs, error) { return access.ParseNodeIDs(file, contents[0]) }
	return watch(w, flag, parse, file)
}

// parsePool reads certificates in PEM.
func parsePool(file string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " holds no PEM certificate")
	}
	return pool, nil
}

// serverTLS makes the configuration of a listener, with the certificate and the authorities as
// they are at each handshake. Sessions are not resumed: each connection shows its certificate
// anew.
func serverTLS(
	pair func() *tls.Certificate, clientCAs func() *x509.CertPool, auth tls.ClientAuthType, protocols ...string,
) *tls.Config {
	config := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             protocols,
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair(), nil },
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
