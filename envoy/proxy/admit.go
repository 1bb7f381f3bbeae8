package proxy

import (
	"errors"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/sluice-ratelimit/sluice/envoy/target"
)

// admit refuses what the Envoy of a rendered bootstrap would not show to a filter,
// and returns the path of all else.
func admit(r *http.Request) (path string, redirect bool, err error) {
	for name := range r.Header {
		if strings.Contains(name, "_") { // some servers read it as a hyphen: a second spelling of a key
			return "", false, errors.New("a header's name has an underscore")
		}
	}
	switch {
	case r.Method == http.MethodConnect || r.Method != strings.ToUpper(r.Method): // get is no way around a rule for GET
		return "", false, errors.New("unknown method")
	case r.Host == "" || !httpguts.ValidHostHeader(r.Host):
		return "", false, errors.New("no host, or a malformed one")
	}
	return target.Normalize(strings.TrimPrefix(r.RequestURI, "http://"+r.Host)) // which a client of a forward proxy sends
}
