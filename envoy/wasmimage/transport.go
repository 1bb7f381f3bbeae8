package wasmimage

import (
	"fmt"
	"net"
	"net/http"
)

// OnlyTLS refuses plain HTTP, which go-containerregistry falls back to by itself where
// the registry's address is a private one.
type OnlyTLS struct {
	Next     http.RoundTripper
	Loopback bool // may be plain
}

// RoundTrip sends the request, or refuses to.
func (t OnlyTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	host := r.URL.Hostname()
	local := host == "localhost" || net.ParseIP(host).IsLoopback()
	if r.URL.Scheme != "https" && (!t.Loopback || !local) {
		return nil, fmt.Errorf("%s wants plain HTTP", r.URL.Host)
	}
	return t.Next.RoundTrip(r)
}
