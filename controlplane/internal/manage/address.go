package manage

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Allow lists where proxies may be asked.
type Allow struct {
	networks []netip.Prefix
	names    []string
}

// DefaultAllow is loopback.
const DefaultAllow = "127.0.0.0/8,::1"

// ParseAllow reads networks, addresses and host names, separated by commas. A
// network allows the addresses in it that are dialed, also those that DNS gives for
// a name. A name allows that very name, whatever address DNS gives for it.
func ParseAllow(text string) (Allow, error) {
	var a Allow
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if ip, err := netip.ParseAddr(entry); err == nil && ip.Zone() == "" {
			entry += "/" + strconv.Itoa(ip.BitLen())
		}
		network, err := netip.ParsePrefix(entry)
		address, _, sliced := strings.Cut(entry, "/")
		ip, notIP := netip.ParseAddr(address)
		switch {
		case err == nil && network.Addr().Is4In6():
			return Allow{}, fmt.Errorf("%q is an IPv4 network written as IPv6: write it as IPv4", entry)
		case err == nil:
			a.networks = append(a.networks, network.Masked())
		case sliced && notIP == nil && ip.Zone() == "":
			return Allow{}, fmt.Errorf("%q is not a network: prefix lengths end at %d", entry, ip.BitLen())
		case isName(entry):
			a.names = append(a.names, canonical(entry))
		default:
			return Allow{}, fmt.Errorf("%q is neither a network such as 10.0.0.0/8 nor a host name", entry)
		}
	}
	return a, nil
}

func (a Allow) holds(host string, ip netip.Addr) bool {
	return slices.Contains(a.names, canonical(host)) ||
		slices.ContainsFunc(a.networks, func(n netip.Prefix) bool { return n.Contains(ip) })
}

func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// isName reports whether the text is a host name, and no address however
// written: some resolvers take 127.1, 0x7f.1 and 2130706433 for 127.0.0.1.
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

// Rules say where the token may go.
type Rules struct {
	Allow    *Allow           // nil: anywhere
	Own      []netip.AddrPort // listeners of this process, which are no proxies
	Insecure bool             // without TLS off loopback too
}

// check judges the URL itself, before a name in it is looked up.
func (r *Rules) check(u *url.URL) error {
	host := u.Hostname()
	ip, err := netip.ParseAddr(host)
	if err != nil && !isName(host) {
		return &Failure{fmt.Sprintf("%q is neither an IP address nor a host name", host), addressHint}
	}
	if err == nil && ip.Zone() != "" && r.Allow != nil {
		return &Failure{fmt.Sprintf("address %s has a zone, which only means something on its own machine", host), addressHint}
	}
	if err == nil && r.Allow != nil && !r.Allow.holds(host, ip.Unmap()) {
		return outside(u.Host)
	}
	if u.Scheme == "http" && !r.Insecure && !IsLoopback(host) {
		return &Failure{"refuse to send the token to " + u.Host + " without TLS", r.tlsHint()}
	}
	return nil
}

// checkDialled judges the address that is about to be connected to.
func (r *Rules) checkDialled(u *url.URL, at netip.AddrPort) error {
	ip := at.Addr().Unmap()
	what := u.Host
	if isName(u.Hostname()) {
		what += " at " + ip.String()
	}
	isOwn := func(own netip.AddrPort) bool { return own.Port() == at.Port() && isAt(own.Addr().Unmap(), ip) }
	switch {
	case ip.Zone() != "" && r.Allow != nil || ip.IsUnspecified() || ip.IsMulticast():
		return &Failure{what + " is the address of no proxy", addressHint}
	case r.Allow != nil && !r.Allow.holds(u.Hostname(), ip):
		return outside(what)
	case u.Scheme == "http" && !r.Insecure && !ip.IsLoopback():
		return &Failure{"refuse to send the token without TLS: " + what, r.tlsHint()}
	case slices.ContainsFunc(r.Own, isOwn):
		return &Failure{what + " is where sluice serve itself listens", addressHint}
	}
	return nil
}

func outside(what string) error {
	return &Failure{
		what + " is outside what serve may ask",
		"serve --manage-allow lists the networks and names of management listeners",
	}
}

const addressHint = "sluice.manage in the node's metadata names the management listener: IP:PORT, or https://HOST:PORT"

func (r *Rules) tlsHint() string {
	if r.Allow == nil {
		return "use https, ask on the proxy's own machine, or trust the network with --insecure"
	}
	return "render envoy --manage-cert and --manage-key give the management listener TLS"
}

// isAt reports whether a listener takes connections to the address.
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
// than localhost could be anyone's.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return canonical(host) == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Proxy is a connected proxy.
type Proxy struct {
	Node     string
	Revision uint64 // of the policy it runs, 0 if none
	Path     string // of management in that policy, empty if it has none
	Err      error  // why the path is not known
	Address  string // of its management listener, as it says
	Peer     string // the address it is connected from
}

// Target is where to ask a proxy, or why it cannot be asked.
type Target struct {
	Node     string
	Revision uint64
	URL      *url.URL
	Err      error
}

// Targets returns a target for each proxy. Of several that name one listener, only
// one is asked, so that nothing counts twice: the one that is connected from
// there, or else the first.
func Targets(proxies []Proxy) []Target {
	targets := make([]Target, len(proxies))
	owners := map[string]int{}
	for i, p := range proxies {
		targets[i] = Target{Node: p.Node, Revision: p.Revision}
		targets[i].URL, targets[i].Err = p.url()
		if targets[i].Err != nil {
			continue
		}
		host := targets[i].URL.Host
		owner, taken := owners[host]
		if !taken || !proxies[owner].isConnectedFrom(host) && p.isConnectedFrom(host) {
			owners[host] = i
		}
	}
	for i := range targets {
		t := &targets[i]
		if t.Err == nil && owners[t.URL.Host] != i {
			t.Err = alsoThatOf(proxies[i].Address, proxies[owners[t.URL.Host]].Node)
		}
	}
	return targets
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

// url is where the proxy answers. A proxy that listens on all addresses is asked at
// the one it is connected from.
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

// Port is that of the listener at an address that a proxy has told, 0 where there is none.
func Port(address string) uint16 {
	_, port, _ := splitAddress(strings.TrimPrefix(address, "https://"))
	return port
}

func (p Proxy) listener() (scheme, address string, err error) {
	if p.Address == "" {
		return "", "", &Failure{
			"it has reported no management address",
			"sluice render envoy --manage IP:PORT gives it a listener and reports the address; " +
				"else set sluice: {manage: IP:PORT} in the node's metadata",
		}
	}
	scheme, address = "http", p.Address
	if rest, secure := strings.CutPrefix(address, "https://"); secure {
		scheme, address = "https", rest
	}
	host, number, err := splitAddress(address)
	if err != nil {
		return "", "", &Failure{fmt.Sprintf("its management address %q %s", printable.Cut(p.Address, maxShown), err), addressHint}
	}
	from, _, _ := net.SplitHostPort(p.Peer)
	peer, _ := netip.ParseAddr(from)
	listens, _ := netip.ParseAddr(host) // a name is looked up when it is dialed
	switch {
	case host == "" || listens.Unmap().IsUnspecified():
		host = cmp.Or(from, host)
	case IsLoopback(host) && peer.IsValid() && !peer.Unmap().IsLoopback():
		return "", "", &Failure{
			fmt.Sprintf("its management address %s is of loopback on its own machine", p.Address),
			"ask it there, with --proxy, or give it a management address that can be reached",
		}
	case listens.IsValid():
		host = listens.Unmap().String() // one spelling
	}
	return scheme, net.JoinHostPort(canonical(host), strconv.Itoa(int(number))), nil
}

var errNotAddress = errors.New("is not IP:PORT")

// splitAddress reads HOST:PORT, where the host may be absent.
func splitAddress(text string) (host string, port uint16, err error) {
	host, digits, err := net.SplitHostPort(text)
	number, portErr := strconv.ParseUint(digits, 10, 16)
	if err != nil || portErr != nil || number == 0 {
		return "", 0, errNotAddress
	}
	if ip, err := netip.ParseAddr(host); host != "" && !isName(host) && (err != nil || ip.Zone() != "") {
		return "", 0, errNotAddress
	}
	return host, uint16(number), nil
}

// maxShown bounds what a message repeats of a proxy's words.
const maxShown = 200
