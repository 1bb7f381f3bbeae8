package manage

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Allow is the networks and host names where proxies may be asked.
type Allow struct {
	networks []netip.Prefix
	names    []string
}

// DefaultAllow is loopback.
const DefaultAllow = "127.0.0.0/8,::1"

// ParseAllow reads networks, addresses and host names, separated by commas. A network allows the
// addresses in it, also if DNS gives them for a name. A name allows that name alone, and any
// address that DNS gives for it.
func ParseAllow(text string) (Allow, error) {
	var a Allow
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if isName(entry) {
			a.names = append(a.names, canonical(entry))
			continue
		}
		network, err := parseNetwork(entry)
		if err != nil {
			return Allow{}, err
		}
		a.networks = append(a.networks, network)
	}
	return a, nil
}

// parseNetwork reads a network, or an address, which is a network of one.
func parseNetwork(entry string) (netip.Prefix, error) {
	address, length, hasLength := strings.Cut(entry, "/")
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is neither a network such as 10.0.0.0/8 nor a host name", entry)
	}
	if !hasLength {
		length = strconv.Itoa(ip.BitLen())
	}
	network, err := netip.ParsePrefix(address + "/" + length)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not a network: prefix lengths end at %d", entry, ip.BitLen())
	case ip.Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4 network written as IPv6: write it as IPv4", entry)
	}
	return network.Masked(), nil
}

func (a Allow) holds(host string, ip netip.Addr) bool {
	return slices.Contains(a.names, canonical(host)) ||
		slices.ContainsFunc(a.networks, func(n netip.Prefix) bool { return n.Contains(ip) })
}

func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// isName reports whether the text is a host name, and not an address in any spelling: some
// resolvers read 127.1, 0x7f.1 and 2130706433 as 127.0.0.1.
func isName(host string) bool {
	host = canonical(host)
	if len(host) == 0 || len(host) > 253 {
		return false
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		outside := strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_")
		if label == "" || len(label) > 63 || outside != "" {
			return false
		}
	}
	last := labels[len(labels)-1]
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

// Reach is where the token may go.
type Reach struct {
	Allow    *Allow           // nil: anywhere, because a user has named the one proxy
	Own      []netip.AddrPort // listeners of this process, which are no proxies
	Insecure bool             // also without TLS to addresses that are not loopback
}

// check judges the URL itself, before a name in it is looked up.
func (r *Reach) check(u *url.URL) error {
	host := u.Hostname()
	ip, err := netip.ParseAddr(host)
	isIP := err == nil
	switch {
	case !isIP && !isName(host):
		return &Failure{fmt.Sprintf("%q is neither an IP address nor a host name", host), addressHint}
	case isIP && r.Allow != nil && ip.Zone() != "":
		return &Failure{"address " + host + " has a zone, which means something on its own machine only", addressHint}
	case isIP && r.Allow != nil && !r.Allow.holds(host, ip.Unmap()):
		return notAllowed(u.Host)
	case u.Scheme == "http" && !r.Insecure && !IsLoopback(host):
		return &Failure{"refuse to send the token to " + u.Host + " without TLS", r.tlsHint()}
	}
	return nil
}

// checkDialed judges the address that is about to be connected to.
func (r *Reach) checkDialed(u *url.URL, at netip.AddrPort) error {
	ip := at.Addr().Unmap()
	what := u.Host
	if isName(u.Hostname()) {
		what += " at " + ip.String()
	}
	isOwn := func(own netip.AddrPort) bool { return own.Port() == at.Port() && isAt(own.Addr().Unmap(), ip) }
	switch {
	case ip.IsUnspecified() || ip.IsMulticast() || r.Allow != nil && ip.Zone() != "":
		return &Failure{what + " is not an address that a proxy can have", addressHint}
	case r.Allow != nil && !r.Allow.holds(u.Hostname(), ip):
		return notAllowed(what)
	case u.Scheme == "http" && !r.Insecure && !ip.IsLoopback():
		return &Failure{"refuse to send the token without TLS: " + what, r.tlsHint()}
	case slices.ContainsFunc(r.Own, isOwn):
		return &Failure{what + " is an address where sluice serve itself listens", addressHint}
	}
	return nil
}

func notAllowed(what string) error {
	return &Failure{
		what + " is not allowed by --manage-allow",
		"serve --manage-allow lists the networks and names of management listeners",
	}
}

const addressHint = "sluice.manage in the node's metadata names the management listener: IP:PORT, or https://HOST:PORT"

func (r *Reach) tlsHint() string {
	if r.Allow == nil {
		return "use https, run this on the proxy's machine, or trust the network with --insecure"
	}
	return "render envoy --manage-cert and --manage-key give the management listener TLS"
}

// isAt reports whether a listener accepts connections to the address.
func isAt(listener, ip netip.Addr) bool {
	if !listener.IsUnspecified() {
		return listener == ip
	}
	if ip.IsLoopback() {
		return true
	}
	own, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		network, err := netip.ParsePrefix(a.String())
		return err == nil && network.Addr().Unmap() == ip
	})
}

// IsLoopback reports whether only this machine can mean the host. A name other
// than localhost can be anyone's.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return canonical(host) == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
