package keyed

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/origin"
)

// KeyFunc returns the key of a request; ok is false if the request has none.
type KeyFunc func(*http.Request) (key string, ok bool)

// ByHeader returns a KeyFunc for the value of a request header. It joins several
// lines of the header by commas, as proxies do. An empty value is a key too.
//
// Use it only for a header that a proxy or middleware has checked: if the client
// chooses the value, it chooses its own counter.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	if name == "Host" { // which a server takes out of the header
		return func(r *http.Request) (string, bool) { return r.Host, r.Host != "" }
	}
	return func(r *http.Request) (string, bool) {
		switch values := r.Header[name]; len(values) {
		case 0:
			return "", false
		case 1:
			return values[0], true
		default:
			return strings.Join(values, ","), true
		}
	}
}

// ByIP is a KeyFunc for the peer's address: the whole IPv4 address, or the /64
// network of an IPv6 address, because one client may have all of it. It does not
// read X-Forwarded-For, which any client can write. Behind a proxy, use a KeyFunc
// that reads what the proxy sets.
func ByIP(r *http.Request) (key string, ok bool) {
	key = origin.Of(r.RemoteAddr)
	return key, key != "" // as of a Unix socket
}

// MiddlewareOption is an option of [Limiter.Middleware].
type MiddlewareOption func(*middleware)

// Cost sets the function that returns a request's cost in units; see [Limiter.HitN]
// for a cost of 0. Without it each request costs one unit.
func Cost(cost func(*http.Request) uint32) MiddlewareOption {
	return func(m *middleware) { m.cost = cost }
}

// Denied sets the function that answers denied requests. Retry-After and the
// RateLimit fields are already set when it is called. Without it the answer is
// status 429 and a line of text.
func Denied(denied func(http.ResponseWriter, *http.Request, Result)) MiddlewareOption {
	return func(m *middleware) { m.denied = denied }
}

// RateLimitFields adds the response fields RateLimit and RateLimit-Policy of
// draft-ietf-httpapi-ratelimit-headers-10 to every response to a request that has a
// key. The fields call the limit name. If there are several windows, they call each
// "name/" followed by the window's own name or index.
func RateLimitFields(name string) MiddlewareOption {
	return func(m *middleware) { m.fields, m.name = true, name }
}

type middleware struct {
	limiter *Limiter
	key     KeyFunc
	cost    func(*http.Request) uint32
	denied  func(http.ResponseWriter, *http.Request, Result)
	fields  bool
	name    string
	next    http.Handler
}

// Middleware wraps a handler so that it serves only requests that the limiter
// allows. Denied requests are answered with status 429 and Retry-After in whole
// seconds, rounded up, at least 1. There is no Retry-After if waiting does not help.
// Requests without a key pass and are not counted.
func (l *Limiter) Middleware(key KeyFunc, options ...MiddlewareOption) func(http.Handler) http.Handler {
	m := middleware{
		limiter: l, key: key,
		cost:   func(*http.Request) uint32 { return 1 },
		denied: tooManyRequests,
	}
	for _, o := range options {
		o(&m)
	}
	return func(next http.Handler) http.Handler {
		served := m
		served.next = next
		return &served
	}
}

func tooManyRequests(w http.ResponseWriter, _ *http.Request, _ Result) {
	http.Error(w, "rate limit exceeded", http.StatusTooManyRequests)
}

// ServeHTTP serves the request if the limiter allows it.
func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, ok := m.key(r)
	if !ok {
		m.next.ServeHTTP(w, r)
		return
	}
	var result Result
	if cost := m.cost(r); m.fields {
		var space [4]Usage
		var windows []Usage
		result, windows = m.limiter.HitDetail(key, cost, space[:0])
		if until := result.BlockedUntil; !until.IsZero() {
			for i := range windows {
				windows[i].Remaining, windows[i].ResetAt = 0, until
			}
		}
		m.setFields(w.Header(), windows, m.limiter.now())
	} else {
		result = m.limiter.HitN(key, cost)
	}
	if result.Allowed {
		m.next.ServeHTTP(w, r)
		return
	}
	if result.RetryAfter != Never {
		seconds := max(1, fields.Seconds(int64(result.RetryAfter)))
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	m.denied(w, r, result)
}

// setFields sets the RateLimit fields.
func (m *middleware) setFields(header http.Header, windows []Usage, now int64) {
	var policies, limits []byte
	for i := range windows {
		u := &windows[i]
		n := fields.Window{Rule: m.name, Name: u.Name, Index: i, Only: len(windows) == 1}
		w := &m.limiter.windows[m.limiter.named[i].column]
		policies = n.AppendPolicy(policies, w, now)
		limits = n.AppendLimit(limits, w, u.Remaining, fields.Seconds(u.ResetAt.UnixNano()-now))
	}
	header.Set("RateLimit-Policy", string(policies))
	header.Set("RateLimit", string(limits))
}
