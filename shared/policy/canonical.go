package policy

import (
	"net/netip"
	"strings"
)

// CanonicalHost is the one spelling under which a host without port is
// compared and counted: in lower case, without dots at its end, an IPv6 address
// in brackets in its shortest form.
func CanonicalHost(host string) string {
	if strings.HasPrefix(host, "[") {
		if inside, closed := strings.CutSuffix(host[1:], "]"); closed {
			if ip, err := netip.ParseAddr(inside); err == nil && ip.Is6() {
				return bracketed(host, ip.WithZone(""))
			}
		}
	}
	for len(host) > 1 && host[len(host)-1] == '.' {
		host = host[:len(host)-1]
	}
	return strings.ToLower(host)
}

// bracketed is the address as a host, the given one where that is it.
func bracketed(host string, ip netip.Addr) string {
	var buf [64]byte
	b := append(ip.AppendTo(append(buf[:0], '[')), ']')
	if string(b) == host {
		return host
	}
	return string(b)
}

// Unescape resolves escapes such as %20 once. What is no escape stays as it
// is, as browsers and most servers have it, so that every text has a meaning.
func Unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	return string(appendUnescaped(make([]byte, 0, len(s)), s, false))
}

// UnescapeQuery is Unescape for names and values in a query, where + is a
// space.
func UnescapeQuery(s string) string {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s
	}
	return string(appendUnescaped(make([]byte, 0, len(s)), s, true))
}

func appendUnescaped(b []byte, s string, plus bool) []byte {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '+' && plus:
			c = ' '
		case c == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			c = hexValue(s[i+1])<<4 | hexValue(s[i+2])
			i += 2
		}
		b = append(b, c)
	}
	return b
}

func isHex(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

func hexValue(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}
