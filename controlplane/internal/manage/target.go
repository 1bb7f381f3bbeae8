package manage

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Proxy is a connected proxy.
type Proxy struct {
	Node     string
	Revision uint64 // of the policy it runs, 0 if none
	Path     string // of management in that policy, empty if it has none
	Err      error  // why the path is not known
	Address  string // of its management listener, as it reports it
	Peer     string // the address that it is connected from
}

// Target is where to ask a proxy, or why it cannot be asked.
type Target struct {
	Node     string
	Revision uint64
	URL      *url.URL
	Err      error
}

// Targets returns a target for each proxy. If several name one listener, only one of them is
// asked, so that nothing counts twice.
func Targets(proxies []Proxy) []Target {
	targets := make([]Target, len(proxies))
	for i, p := range proxies {
		targets[i] = Target{Node: p.Node, Revision: p.Revision}
		targets[i].URL, targets[i].Err = p.url()
	}
	owns := owners(proxies, targets)
	for i := range targets {
		t := &targets[i]
		if t.Err != nil {
			continue
		}
		if owner := owns[t.URL.Host]; owner != i {
			t.Err = alsoThatOf(proxies[i].Address, proxies[owner].Node)
		}
	}
	return targets
}

// owners are the proxies, by index, that are asked at each listener: the one that is connected
// from its address, or else the first that names it.
func owners(proxies []Proxy, targets []Target) map[string]int {
	owns := map[string]int{}
	for i, p := range proxies {
		if targets[i].Err != nil {
			continue
		}
		host := targets[i].URL.Host
		owner, isTaken := owns[host]
		if !isTaken || !proxies[owner].isConnectedFrom(host) && p.isConnectedFrom(host) {
			owns[host] = i
		}
	}
	return owns
}

func alsoThatOf(address, node string) error {
	return &Failure{
		fmt.Sprintf("its management address %s is also that of %s", printable.Cut(address, maxShown), node),
		"give each proxy a management address of its own",
	}
}

func (p Proxy) isConnectedFrom(host string) bool {
	from, _, _ := net.SplitHostPort(p.Peer)
	to, _, _ := net.SplitHostPort(host)
	return from == to
}

// url is where the proxy answers. A proxy that listens on all addresses is asked at the address
// that it is connected from.
func (p Proxy) url() (*url.URL, error) {
	scheme, host, err := p.listener()
	switch {
	case err != nil:
		return nil, err
	case p.Revision == 0:
		return nil, &Failure{"it has not accepted a policy from here yet", "sluice status shows what it runs"}
	case p.Err != nil:
		return nil, p.Err
	case p.Path == "":
		return nil, &Failure{
			"the policy it runs has no manage, so it answers no management requests",
			`add manage: {path: /.sluice/, port: PORT, token_sha256: "…"} to the policy and apply it`,
		}
	}
	return &url.URL{Scheme: scheme, Host: host, Path: p.Path}, nil
}

// Port is the port of a management address that a proxy has reported, 0 if there is none.
func Port(address string) uint16 {
	_, hostPort := splitScheme(address)
	_, port, _ := splitAddress(hostPort)
	return port
}

// listener is where the proxy's management listener can be reached.
func (p Proxy) listener() (scheme, address string, err error) {
	if p.Address == "" {
		return "", "", &Failure{
			"it has reported no management address",
			"sluice render envoy --manage IP:PORT gives it a listener and reports the address; " +
				"else set sluice: {manage: IP:PORT} in the node's metadata",
		}
	}
	scheme, hostPort := splitScheme(p.Address)
	host, port, err := splitAddress(hostPort)
	if err != nil {
		return "", "", &Failure{
			fmt.Sprintf("its management address %q %s", printable.Cut(p.Address, maxShown), err), addressHint,
		}
	}
	host, err = p.reachable(host)
	if err != nil {
		return "", "", err
	}
	return scheme, net.JoinHostPort(canonical(host), strconv.Itoa(int(port))), nil
}

// reachable is the listener's host as this process reaches it.
func (p Proxy) reachable(host string) (string, error) {
	from, _, _ := net.SplitHostPort(p.Peer)
	peer, _ := netip.ParseAddr(from)
	ip, _ := netip.ParseAddr(host) // not valid: a name, which is looked up when it is dialed
	switch {
	case host == "" || ip.Unmap().IsUnspecified():
		return cmp.Or(from, host), nil
	case IsLoopback(host) && peer.IsValid() && !peer.Unmap().IsLoopback():
		return "", &Failure{
			fmt.Sprintf("its management address %s is loopback on its own machine", p.Address),
			"ask it there, with --proxy, or give it a management address that can be reached from here",
		}
	case ip.IsValid():
		return ip.Unmap().String(), nil // one spelling
	}
	return host, nil
}

// splitScheme reads [https://]HOST:PORT.
func splitScheme(address string) (scheme, hostPort string) {
	if rest, ok := strings.CutPrefix(address, "https://"); ok {
		return "https", rest
	}
	return "http", address
}

var errNotAddress = errors.New("is not IP:PORT")

// splitAddress reads HOST:PORT, where the host may be absent.
func splitAddress(text string) (host string, port uint16, err error) {
	host, digits, err := net.SplitHostPort(text)
	number, portErr := strconv.ParseUint(digits, 10, 16)
	if err != nil || portErr != nil || number == 0 {
		return "", 0, errNotAddress
	}
	ip, ipErr := netip.ParseAddr(host)
	isIP := ipErr == nil && ip.Zone() == ""
	if host != "" && !isIP && !isName(host) {
		return "", 0, errNotAddress
	}
	return host, uint16(number), nil
}
