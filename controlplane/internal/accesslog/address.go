package accesslog

import (
	"bytes"
	"net/netip"
)

// address returns the address in a text that may have a port, or be a list as in
// X-Forwarded-For, where the last one is what the proxy itself has seen. Empty: there
// is none.
func address(text []byte) []byte {
	if i := bytes.LastIndexByte(text, ','); i >= 0 {
		text = text[i+1:]
	}
	text = bytes.TrimSpace(text)
	if bytes.HasPrefix(text, []byte("[")) { // [::1]:80
		end := bytes.IndexByte(text, ']')
		if end < 0 {
			return nil
		}
		text = text[1:end]
	} else if i := bytes.IndexByte(text, ':'); i >= 0 && bytes.LastIndexByte(text, ':') == i {
		text = text[:i]
	}
	if _, err := netip.ParseAddr(string(text)); err != nil {
		return nil
	}
	return text
}
