package accesslog

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// cutRequestLine returns the method, the host or else the path of "GET /path HTTP/1.1".
func cutRequestLine(line, field string) (part string, ok bool) {
	method, rest, hasMethod := strings.Cut(line, " ")
	end := strings.LastIndexByte(rest, ' ')
	if !hasMethod || end < 0 || !strings.HasPrefix(rest[end+1:], "HTTP/") {
		return "", false
	}
	switch field {
	case FieldMethod:
		return method, true
	case FieldHost:
		host, _ := cutURL(rest[:end])
		return host, true
	}
	return rest[:end], true
}

// cutURL cuts http://host/path into host and path. Clients send it to a forward proxy, and
// load balancers log it.
func cutURL(url string) (host, path string) {
	_, rest, ok := strings.Cut(url, "://")
	if !ok || url[0] == '/' {
		return "", url
	}
	host, path, _ = strings.Cut(rest, "/")
	return host, "/" + path
}

// address returns an address without its port. Of a list, as X-Forwarded-For is one, it is
// the last address that is not private: the one that the outermost of your proxies has
// seen. If all are private, it is the last. It is empty if the text has no address.
func address(text string) (found string) {
	parts := strings.Split(text, ",")
	for i := len(parts) - 1; i >= 0; i-- {
		host := strings.TrimSpace(parts[i])
		if withPort, err := netip.ParseAddrPort(host); err == nil {
			host = withPort.Addr().String()
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		ip, err := netip.ParseAddr(host)
		switch {
		case err != nil:
			return found
		case !isPrivate(ip):
			return host
		case found == "":
			found = host
		}
	}
	return found
}

// isPublic reports whether the text is an address that is not private.
func isPublic(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err == nil && !isPrivate(ip)
}

func isPrivate(ip netip.Addr) bool {
	return ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast()
}

func count(text string, most int64) (n int64, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && n <= most
}

// maxTook is the longest that a request can have taken, 24 days: what is longer counts as that.
const maxTook = math.MaxInt32 * time.Millisecond

// duration reads a number of units, or a text with its own unit, as Caddy may write 1.5ms.
func duration(text string, unit time.Duration) (took time.Duration, ok bool) {
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && unit > 0 {
		took = time.Duration(min(n*float64(unit), float64(maxTook)))
	} else {
		took, err = time.ParseDuration(text)
	}
	return min(took, maxTook), err == nil && took >= 0
}

// One line with a time far ahead would put all later lines out of their order, so a time
// must be one at which a log can have been written.
var (
	firstNs = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	lastNs  = time.Now().Add(24 * time.Hour).UnixNano()
)

func inRange(ns int64) (int64, bool) { return ns, ns >= firstNs && ns < lastNs }

// byLayout reads times of one layout of package time.
func byLayout(layout string) func(string) (int64, bool) {
	return func(text string) (int64, bool) {
		t, err := time.Parse(layout, text)
		if err != nil || t.Year() < 1970 || t.Year() > 2200 { // beyond them, UnixNano is undefined
			return 0, false
		}
		return inRange(t.UnixNano())
	}
}

const localLayout = "02/Jan/2006:15:04:05 -0700"

var (
	rfc3339 = byLayout(time.RFC3339Nano)
	local   = byLayout(localLayout)
	noColon = byLayout("2006-01-02T15:04:05.999999999-0700")
)

// dateTime reads the time of a W3C log, which is UTC and two values.
func dateTime(text string) (int64, bool) {
	return byLayout(time.DateTime)(strings.Replace(text, "\t", " ", 1))
}

// anyTime reads a time of any form that says which instant it is: a form without a zone
// does not.
func anyTime(text string) (int64, bool) {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]") // as Apache's %t
	switch {
	case len(text) < 9:
		return 0, false
	case text[2] == '/':
		return local(text)
	case text[4] == '-':
		if ns, ok := rfc3339(text); ok {
			return ns, true
		}
		return noColon(text)
	}
	return epoch(text)
}

// epoch reads a number of seconds, or of milli-, micro- or nanoseconds. Each has three
// digits more than the one before, and only one of them is a time at which a log was written.
func epoch(text string) (int64, bool) {
	if strings.ContainsAny(text, "eE") { // 1.769860801E9, as Java writes it
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || !(f >= 0 && f < math.MaxInt64) {
			return 0, false
		}
		text = strconv.FormatFloat(f, 'f', -1, 64)
	}
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	scale := int64(time.Second)
	for scale > 1 && n > lastNs/scale {
		scale /= 1000
	}
	ns := n * scale
	if fraction != "" {
		f, err := strconv.ParseFloat("0."+fraction, 64)
		if err != nil {
			return 0, false
		}
		ns += int64(math.Round(f * float64(scale)))
	}
	return inRange(ns)
}

// coarsest returns the grain of a log's clock: the largest unit that all its times are
// multiples of. Before the first time it is 0.
func coarsest(grain, ns int64) int64 {
	if grain == 0 {
		grain = int64(time.Second)
	}
	for grain > 1 && ns%grain != 0 {
		grain /= 1000
	}
	return grain
}
