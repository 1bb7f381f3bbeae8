package proxy

import (
	"net/http"
	"slices"
	"strings"
)

// refusal is an answer to a request that goes no further.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

var (
	errVersion    = &refusal{http.StatusUpgradeRequired, "this proxy speaks HTTP/1.1"}
	errHead       = &refusal{http.StatusRequestHeaderFieldsTooLarge, "the head of a request has at most 100 headers and 60 KiB"}
	errUnderscore = &refusal{http.StatusBadRequest, "a header's name has an underscore"}
	errMethod     = &refusal{http.StatusBadRequest, "unknown method"}
	errConnect    = &refusal{http.StatusMethodNotAllowed, "CONNECT is not supported"}
	errHost       = &refusal{http.StatusBadRequest, "no host"}
	errPath       = &refusal{http.StatusBadRequest, "malformed request path"}
	errAuthority  = &refusal{http.StatusBadRequest, "malformed authority"}
	errScheme     = &refusal{http.StatusForbidden, "the connection has no TLS, so the scheme is http"}
	errNoPath     = &refusal{http.StatusNotFound, "no path"}
)

// methods are those that Envoy takes. They are in capitals, so that get is no
// way around a rule for GET.
var methods = strings.Fields(`GET HEAD POST PUT DELETE OPTIONS TRACE PATCH
	ACL BIND CHECKOUT COPY LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MOVE NOTIFY PROPFIND PROPPATCH
	PURGE REBIND REPORT SEARCH SOURCE SUBSCRIBE UNBIND UNLINK UNLOCK UNSUBSCRIBE`)

// admit refuses what Envoy would not show to a filter, and returns the path of
// all else.
func admit(r *http.Request) (path string, redirect bool, why *refusal) {
	switch {
	case r.ProtoMajor != 1 || r.ProtoMinor != 1:
		return "", false, errVersion
	case headTooLarge(r):
		return "", false, errHead
	case underscored(r.Header):
		return "", false, errUnderscore
	case r.Method == http.MethodConnect:
		return "", false, errConnect
	case !slices.Contains(methods, r.Method):
		return "", false, errMethod
	}
	if path, why = origin(r.RequestURI); why != nil {
		return "", false, why
	}
	if r.Host == "" {
		return "", false, errHost
	}
	return normalize(path)
}

// underscored finds what some servers read as a hyphen: x_user_id would be a
// second spelling of a key.
func underscored(h http.Header) bool {
	for name := range h {
		if strings.Contains(name, "_") {
			return true
		}
	}
	return false
}

// headTooLarge counts exactly where net/http allows some more.
func headTooLarge(r *http.Request) bool {
	bytes := len(r.Method) + len(r.RequestURI) + len(r.Host)
	headers := 1 // Host
	for name, values := range r.Header {
		for _, value := range values {
			bytes += len(name) + len(value)
			headers++
		}
	}
	return bytes > maxHeaderBytes || headers > maxHeaders
}
