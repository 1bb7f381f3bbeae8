package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// address is a host, a name or an IP without brackets, and a port.
type address struct {
	Host string
	Port uint16
}

// isIP reports whether the host is an IP rather than a name to look up.
func (a address) isIP() bool {
	_, err := netip.ParseAddr(a.Host)
	return err == nil
}

// overlaps reports whether two IPs to listen on share a port: they are the same, or one of them
// stands for every interface. Envoy's [::] is only IPv6.
func (a address) overlaps(b address) bool {
	if a.Port != b.Port || a.Port == 0 {
		return false
	}
	one, other := netip.MustParseAddr(a.Host), netip.MustParseAddr(b.Host)
	return one == other || one.Is4() == other.Is4() && (one.IsUnspecified() || other.IsUnspecified())
}

// NameKind is the kind of name that a certificate carries for the host.
func (a address) NameKind() string {
	if a.isIP() {
		return "IP_ADDRESS"
	}
	return "DNS"
}

// listenAddress reads the address of a listener: IP:PORT. Without an IP it is every IPv4
// interface; the kernel chooses the port if it is 0.
func listenAddress(text string) (address, error) {
	a, err := parseAddress(text)
	if err != nil {
		return address{}, err
	}
	switch a.Host {
	case "":
		a.Host = "0.0.0.0"
	case "localhost":
		a.Host = "127.0.0.1"
	}
	if !a.isIP() {
		return address{}, fmt.Errorf("%q: Envoy listens on an IP, not on a name: want IP:PORT such as 127.0.0.1:8080", text)
	}
	return a, nil
}

// dialAddress reads the address of a server: HOST:PORT.
func dialAddress(text string) (address, error) {
	a, err := parseAddress(text)
	if err != nil {
		return address{}, err
	}
	if a.Host == "" || a.Port == 0 {
		return address{}, fmt.Errorf("%q: want a host and a port such as 127.0.0.1:8080", text)
	}
	return a, nil
}

func parseAddress(text string) (address, error) {
	wrong := func(why string) (address, error) {
		return address{}, fmt.Errorf("%q: %s: want HOST:PORT such as 127.0.0.1:8080 or [::1]:8080", text, why)
	}
	if strings.Contains(text, "://") {
		return wrong("is a URL")
	}
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 {
		return wrong("has no port")
	}
	if strings.ContainsAny(text, " \t\r\n") {
		return wrong("has a blank in it")
	}
	host, digits := text[:colon], text[colon+1:]
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			return wrong("the port is above 65535")
		}
		return wrong("the port is not a number")
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() {
			return wrong("no IPv6 address between the brackets")
		}
	} else if strings.ContainsAny(host, ":[]/") {
		return wrong("is no host name, and an IPv6 address goes between brackets")
	}
	return address{Host: host, Port: uint16(port)}, nil
}
