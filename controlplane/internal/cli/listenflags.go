package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
)

// listenerWords are a command's words for its listener for proxies.
type listenerWords struct {
	name   string // in the log
	flag   string // with its address
	ca     string // the flag of the authorities of proxies' certificates
	danger string // of a listener that asks for no certificate
}

var (
	serveWords = listenerWords{
		name: "xds", flag: "xds", ca: "xds-client-ca",
		danger: "anyone who reaches it could read the policy and pose as a proxy",
	}
	quotaWords = listenerWords{
		name: "quota", flag: "listen", ca: "client-ca",
		danger: "anyone who reaches it could take the units of all proxies",
	}
)

// listenOptions say where serve or quota listens and who may call.
type listenOptions struct {
	words        listenerWords
	http         string // address
	proxies      string // address
	access       string
	tlsCert      string
	tlsKey       string
	httpClientCA string
	proxyCA      string
	insecure     bool
}

// AddFlags adds the flags of the two listeners, with their default addresses.
func (o *listenOptions) AddFlags(cmd *cobra.Command, http, proxies string) {
	f := cmd.Flags()
	f.StringVar(&o.http, "http", http, "`ADDRESS` of the HTTP API")
	f.StringVar(&o.proxies, o.words.flag, proxies, "`ADDRESS` that proxies connect to")
	f.StringVar(&o.access, "access", "",
		"`FILE` with the tokens and certificates that may call the HTTP API, and their roles")
	f.StringVar(&o.tlsCert, "tls-cert", "", "`FILE` with the server's certificate chain, for HTTP and for proxies")
	f.StringVar(&o.tlsKey, "tls-key", "", "`FILE` with its private key")
	f.StringVar(&o.httpClientCA, "http-client-ca", "", "`FILE` with the certificate authorities of --access")
	f.StringVar(&o.proxyCA, o.words.ca, "", "`FILE` with the certificate authorities of proxies")
	f.BoolVar(&o.insecure, "insecure", false, "allow listening without protection on addresses that are not loopback")
}

// check rejects flags that do not go together, and open addresses without --insecure.
func (o *listenOptions) check() (open []openAddress, err error) {
	switch {
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return nil, usageError(errors.New("--tls-cert and --tls-key belong together"), "give both or none")
	case o.httpClientCA != "" && o.tlsCert == "":
		return nil, usageError(errors.New("--http-client-ca needs TLS"), "give --tls-cert and --tls-key too")
	case o.proxyCA != "" && o.tlsCert == "":
		return nil, usageError(errors.New("--"+o.words.ca+" needs TLS"), "give --tls-cert and --tls-key too")
	case o.httpClientCA != "" && o.access == "":
		return nil, usageError(errors.New("--http-client-ca needs --access"),
			"the lines certificate SAN ROLE of that file say who may do what")
	}
	open, err = o.openAddresses()
	if err != nil || len(open) == 0 || o.insecure {
		return open, err
	}
	first := &open[0]
	return nil, usageError(fmt.Errorf("%s %s is not a loopback address: %s", first.flag, first.address, first.danger),
		first.hint+"; --insecure allows it nevertheless")
}

// openAddress is an address that other machines reach and that lacks protection.
type openAddress struct{ flag, address, danger, hint string }

// openAddresses lists the open addresses.
func (o *listenOptions) openAddresses() ([]openAddress, error) {
	web := openAddress{flag: "--http", address: o.http, hint: "give --tls-cert, --tls-key and --access"}
	switch {
	case o.access == "":
		web.danger = "anyone who reaches it could change the policy"
	case o.tlsCert == "":
		web.danger = "anyone on the way could read the tokens"
	}
	stream := openAddress{
		flag: "--" + o.words.flag, address: o.proxies, hint: "give --tls-cert, --tls-key and --" + o.words.ca,
	}
	if o.proxyCA == "" {
		stream.danger = o.words.danger
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
func (o *listenOptions) listen() (serving.Listeners, error) {
	return openListeners(settingAddress{"--http", o.http}, settingAddress{"--" + o.words.flag, o.proxies})
}

// settingAddress is an address with the flag or setting that says it.
type settingAddress struct{ setting, address string }

// openListeners opens the listeners for HTTP and for proxies, for as many connections as the process
// may open files.
func openListeners(http, proxies settingAddress) (l serving.Listeners, err error) {
	places, err := listener.PlacesOfProcess()
	if err != nil {
		return l, err
	}
	web, err := http.open()
	if err != nil {
		return l, err
	}
	stream, err := proxies.open()
	if err != nil {
		return l, errors.Join(err, web.Close())
	}
	return serving.Listeners{HTTP: listener.Bound(web, places.HTTP), Proxies: listener.Bound(stream, places.Proxies)}, nil
}

const addressHint = "give HOST:PORT, for example " + defaultHTTP

// open opens a listener for one address.
func (a settingAddress) open() (net.Listener, error) {
	var l net.Listener
	_, _, err := net.SplitHostPort(a.address) // net.Listen accepts an empty one too
	if err == nil {
		l, err = net.Listen("tcp", a.address)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, withHint(fmt.Errorf("listen on %s: the port is in use", a.address),
			"something else listens there: choose another port with "+a.setting)
	}
	var invalid *net.AddrError
	if errors.As(err, &invalid) {
		return nil, usageError(fmt.Errorf("%s %q is not an address: %s", a.setting, a.address, invalid.Err), addressHint)
	}
	if err != nil {
		return nil, withHint(fmt.Errorf("listen: %w", err), a.setting+" says where to listen")
	}
	return l, nil
}

// guard reads the files that the flags name and warns of what is open.
func (o *listenOptions) guard(log *slog.Logger) (g serving.Guard, err error) {
	open, err := o.check()
	if err != nil {
		return g, err
	}
	for _, a := range open {
		log.Warn("INSECURE: "+a.flag+" "+a.address+" is open: "+a.danger, "hint", a.hint)
	}
	files := flagfile.Watched{Log: log}
	gate := access.Gate{
		ClientCAs: files.Authorities("--http-client-ca", o.httpClientCA),
		List:      flagfile.Watch(&files, "--access", o.readAccess, o.access),
	}
	if gate.List != nil {
		g.Identify = gate.Identify
	}
	pair := files.Certificate("server certificate", o.tlsCert, o.tlsKey)
	g.ProxyCAs = files.Authorities("--"+o.words.ca, o.proxyCA)
	if pair != nil {
		g.HTTP = flagfile.ServerTLS(pair, gate.ClientCAs, tls.VerifyClientCertIfGiven, "h2", "http/1.1")
		g.Proxies = flagfile.ServerTLS(pair, g.ProxyCAs, tls.RequireAndVerifyClientCert, "h2")
	}
	return g, files.Err
}

func (o *listenOptions) readAccess(contents [][]byte) (*access.List, error) {
	list, err := access.ParseList(o.access, contents[0])
	if err == nil && list.MapsCertificates() && o.httpClientCA == "" {
		err = fmt.Errorf("%s gives roles to certificates, but without --http-client-ca clients need no certificate", o.access)
	}
	return list, err
}
