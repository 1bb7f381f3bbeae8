package accesslog

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/target"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What is said of a line that is not read.
var (
	errNoHTTP  = errors.New("it has no request")
	errComment = errors.New("it is a comment")
	errLong    = errors.New("it is too long")
	errRefused = errors.New("it has a path that Envoy answers 400")
)

// put takes the value of a field.
func (d *Request) put(p *place, text string) error {
	part := text
	if p.line && text != "" { // what was no HTTP has no such line
		var ok bool
		if part, ok = cutLine(text, p.field); !ok {
			return errNoHTTP
		}
	}
	if text == "" || text == "-" || p.field == FieldTook && text == "-1" {
		return nil
	}
	if p.most > 0 && len(text) >= p.most && p.field != FieldStatus {
		return fmt.Errorf("%s is %q, and the format cuts it off at %d bytes", p.name, clip(text), p.most)
	}
	if p.had = true; !d.set(p, text, part) {
		return fmt.Errorf("%s is %q, which is no %s", p.name, clip(text), p.kind())
	}
	return nil
}

// kind says what a value should be.
func (p *place) kind() string {
	switch {
	case p.field == FieldTime:
		return "time with a zone, from 1971 until now, in a form that is read"
	case p.field == FieldClientIP:
		return "address"
	case p.field == FieldTook && p.unit == 0:
		return "duration with a unit, as 0.4s: if it is a number of milliseconds, say --map duration_ms=" + p.name +
			"; there are duration_s, duration_us and duration_ns, too"
	}
	return p.field
}

// maxTook is the longest that a request can have taken, 24 days: what is longer counts as that.
const maxTook = math.MaxInt32 * time.Millisecond

// set sets a field. It reports whether the text is one of its values.
func (d *Request) set(p *place, text, part string) (ok bool) {
	var err error
	switch p.field {
	case FieldTime:
		d.Ns, ok = p.time(text)
		return ok
	case FieldTook:
		took, err := time.ParseDuration(text) // 1.5ms, as Caddy may write it
		if n, isNumber := strconv.ParseFloat(text, 64); isNumber == nil && p.unit > 0 {
			took, err = time.Duration(min(n*float64(p.unit), float64(maxTook))), nil
		}
		d.TookNs = min(d.TookNs+int64(min(took, maxTook)), int64(maxTook)) // of several parts
		return err == nil && took >= 0
	case FieldReceived:
		d.Received, err = strconv.ParseInt(text, 10, 64)
		return err == nil && d.Received >= 0
	case FieldSent:
		d.Sent, err = strconv.ParseInt(text, 10, 64)
		return err == nil && d.Sent >= 0
	case FieldStatus:
		d.Status, err = strconv.Atoi(text)
		return err == nil && d.Status >= 0 && d.Status <= 999
	case FieldMethod:
		d.Method = part
		return policy.IsToken(part)
	case FieldHost:
		d.Host = part
		if host, _ := cutTarget(part); host != "" { // of a URL
			d.Host = host
		}
	case FieldPath:
		d.Path = part
	case FieldClientIP:
		d.ClientIP = address(text)
		return d.ClientIP != ""
	case FieldRoute:
		d.Route = text
	default:
		if header, ok := strings.CutPrefix(p.field, headerPrefix); ok {
			d.Headers = append(d.Headers, [2]string{header, text})
		} else {
			d.Values = append(d.Values, [2]string{p.field, text})
		}
	}
	return true
}

// cutLine returns the method, the path or the host of "GET /path HTTP/1.1".
func cutLine(line, field string) (part string, ok bool) {
	method, rest, ok := strings.Cut(line, " ")
	end := strings.LastIndexByte(rest, ' ')
	if !ok || end < 0 || !strings.HasPrefix(rest[end+1:], "HTTP/") {
		return "", false
	}
	switch field {
	case FieldMethod:
		return method, true
	case FieldHost:
		host, _ := cutTarget(rest[:end])
		return host, true
	}
	return rest[:end], true
}

// cutTarget cuts http://host/path, which clients send to a forward proxy and load
// balancers log, into host and path.
func cutTarget(line string) (host, path string) {
	_, rest, ok := strings.Cut(line, "://")
	if !ok || line[0] == '/' {
		return "", line
	}
	host, path, _ = strings.Cut(rest, "/")
	return host, "/" + path
}

// end checks the request of a line, of a format that has these places.
func (d *Request) end(places []*place) (err error) {
	has := func(field string) bool { return find(places, field) != nil }
	switch {
	case d.Method == "" && d.Path == "" && (has(FieldMethod) || has(FieldPath)):
		return errNoHTTP
	case d.Ns == 0:
		return errors.New("it has no time")
	}
	for _, f := range [...][2]string{
		{FieldMethod, d.Method}, {FieldPath, d.Path}, {FieldHost, d.Host}, {FieldClientIP, d.ClientIP},
	} {
		if p := find(places, f[0]); p != nil && p.needed && f[1] == "" {
			return fmt.Errorf("it has no %s", f[0])
		}
	}
	if find(places, FieldTime).end {
		d.Ns -= d.TookNs
	}
	if d.Path != "" {
		_, path := cutTarget(d.Path)
		if path, _, err = target.Normalize(path); err != nil {
			return errRefused
		}
		d.Path = path
	}
	return nil
}

// address returns the address in a text that may have a port, or be a list as in
// X-Forwarded-For: there the last one that is not private, which the outermost of your
// proxies has seen, or else the last. Empty: there is none.
func address(text string) (found string) {
	parts := strings.Split(text, ",")
	for i := len(parts) - 1; i >= 0; i-- {
		host := strings.TrimSpace(parts[i])
		if at, err := netip.ParseAddrPort(host); err == nil {
			host = at.Addr().String()
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

func isPrivateText(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err != nil || isPrivate(ip)
}

func isPrivate(ip netip.Addr) bool {
	return ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast()
}
