package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/conns"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
)

// proxyListener says how a command names its listener for proxies.
type proxyListener struct{ name, flag, ca, danger string }

// xdsListener is serve's.
var xdsListener = proxyListener{
	name: "xds", flag: "--xds", ca: "xds-client-ca",
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
	f.StringVar(&o.xds, o.proxies.flag[2:], proxies, "`ADDRESS` that proxies connect to")
	f.StringVar(&o.access, "access", "", "`FILE` with the tokens and certificates that may call the HTTP API, and their roles")
	f.StringVar(&o.tlsCert, "tls-cert", "", "`FILE` with the server's certificate chain, for HTTP and for proxies")
	f.StringVar(&o.tlsKey, "tls-key", "", "`FILE` with its private key")
	f.StringVar(&o.httpClientCA, "http-client-ca", "", "`FILE` with the authorities whose certificates count for --access")
	f.StringVar(&o.xdsClientCA, o.proxies.ca, "", "`FILE` with the authorities that vouch for proxies")
	f.BoolVar(&o.insecure, "insecure", false, "allow addresses that are not loopback without protection")
}

// check refuses flags that do not go together, and addresses that need more protection than
// they have: without --insecure, which lets them be open.
func (o *listenOptions) check() (open []openAddress, err error) {
	switch {
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return nil, usageError(errors.New("--tls-cert and --tls-key belong together"), "give both or none")
	case o.httpClientCA != "" && o.tlsCert == "":
		return nil, usageError(errors.New("--http-client-ca needs TLS"), "give --tls-cert and --tls-key too")
	case o.xdsClientCA != "" && o.tlsCert == "":
		return nil, usageError(errors.New("--"+o.proxies.ca+" needs TLS"), "give --tls-cert and --tls-key too")
	case o.httpClientCA != "" && o.access == "":
		return nil, usageError(errors.New("--http-client-ca needs --access"), "its lines certificate SAN ROLE say who may do what")
	}
	if open, err = o.open(); err != nil || len(open) == 0 || o.insecure {
		return open, err
	}
	return nil, usageError(fmt.Errorf("%s %s is not a loopback address: %s", open[0].flag, open[0].address, open[0].danger),
		open[0].hint+"; --insecure allows it nevertheless")
}

// openAddress is one that others reach and that lacks protection.
type openAddress struct{ flag, address, danger, hint string }

// open lists the addresses that need more protection than they have.
func (o *listenOptions) open() ([]openAddress, error) {
	web := openAddress{flag: "--http", address: o.http, hint: "give --tls-cert, --tls-key and --access"}
	switch {
	case o.access == "":
		web.danger = "anyone who reaches it could change the policy"
	case o.tlsCert == "":
		web.danger = "anyone on the way could read the tokens"
	}
	stream := openAddress{flag: o.proxies.flag, address: o.xds, hint: "give --tls-cert, --tls-key and --" + o.proxies.ca}
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

// listen opens the two listeners, within what files the process may open.
func (o *listenOptions) listen(log *slog.Logger, guard guard) (*servers, error) {
	share, err := conns.Share()
	if err != nil {
		return nil, err
	}
	web, err := listen("--http", o.http)
	if err != nil {
		return nil, err
	}
	stream, err := listen(o.proxies.flag, o.xds)
	if err != nil {
		return nil, errors.Join(err, web.Close())
	}
	return &servers{
		log: log, guard: guard, proxies: o.proxies.name,
		httpListener: conns.Bound(web, share.HTTP), xdsListener: conns.Bound(stream, share.XDS),
	}, nil
}

const addressHint = "give HOST:PORT, for example " + defaultHTTP

// listen opens a listener for a flag's address.
func listen(flag, address string) (net.Listener, error) {
	var l net.Listener
	_, _, err := net.SplitHostPort(address) // net.Listen takes an empty one, too
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
