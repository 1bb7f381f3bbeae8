package accesslog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// format reads the lines of one format.
type format interface {
	// read takes what a line says. An error says why the line is none of the format.
	read(line []byte, f *found, wanted map[string]bool) error
	// provides lists the fields that lines may have.
	provides() []string
}

// What is wrong with a line.
var (
	errForm      = errors.New("it does not have the format's form")
	errNoTime    = errors.New("it has no time that can be read")
	errNoHTTP    = errors.New("it has no request")
	errNoAddress = errors.New("it has no address of the client")
	errLong      = errors.New("it is too long")
)

const nginxCombined = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent ` +
	`"$http_referer" "$http_user_agent"`

// Formats are the formats with a name.
var textFormats = map[string]string{
	"common":   `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent`,
	"combined": nginxCombined,
	"nginx":    nginxCombined,
	"envoy": `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
		`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" ` +
		`"%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`,
	"istio": `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
		`%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" ` +
		`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" ` +
		`"%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% ` +
		`%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%`,
}

// guesses are the named formats that are tried, those with more values first.
var guesses = []string{"istio", "envoy", "combined", "common"}

const jsonFormat = "json"

// FormatNames lists the formats with a name.
func FormatNames() []string { return append(slices.Sorted(maps.Keys(textFormats)), jsonFormat) }

// newFormat returns the format that a caller has named or written out.
func (o *Options) newFormat(said string) (format, error) {
	if said == jsonFormat {
		return newObject(o.Fields, o.Map), nil
	}
	if pattern, ok := textFormats[said]; ok {
		return o.compileText(pattern)
	}
	if strings.HasPrefix(strings.TrimSpace(said), "{") {
		n, err := policy.ParseJSON([]byte(said))
		if err != nil {
			return nil, fmt.Errorf("--format is no JSON: %w", err)
		}
		return compileObject(n, o.Map)
	}
	if !strings.ContainsAny(said, "%$") {
		return nil, fmt.Errorf("--format %s: there is no such format: it is one of %s, or the format itself "+
			"as Envoy or nginx has it", said, strings.Join(FormatNames(), ", "))
	}
	t, err := o.compileText(said)
	if err != nil {
		return nil, fmt.Errorf("--format: %w", err)
	}
	return t, nil
}

func (o *Options) compileText(pattern string) (format, error) {
	t, err := compileText(pattern, o.Map)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// guess returns the format that reads most of the lines.
func (o *Options) guess(name string, lines []sampled, wanted map[string]bool) (format, error) {
	objects, others := 0, 0
	for _, line := range lines {
		switch {
		case len(line.text) == 0:
		case line.text[0] == '{':
			objects++
		default:
			others++
		}
	}
	if objects > 0 && objects >= others {
		return o.newFormat(jsonFormat)
	}
	var (
		best    format
		most    int
		refused error
	)
	for _, known := range guesses {
		f, err := compileText(textFormats[known], o.Map)
		if err != nil {
			refused = err // --map names what the format lacks
			f, _ = compileText(textFormats[known], nil)
		}
		if n := reads(f, lines, wanted); n > most {
			best, most = f, n
			if err != nil {
				best = nil
			}
		}
	}
	if most == 0 || 2*most < len(lines) {
		return nil, &UnknownFormat{Name: name, Line: firstLine(lines)}
	}
	if best == nil {
		return nil, refused
	}
	return best, nil
}

func firstLine(lines []sampled) string {
	for _, line := range lines {
		if len(line.text) > 0 {
			return clip(line.text)
		}
	}
	return ""
}

// reads counts the lines that a format reads.
func reads(f format, lines []sampled, wanted map[string]bool) (n int) {
	var found found
	for _, line := range lines {
		found.reset()
		if f.read(line.text, &found, wanted) == nil && found.hasTime {
			n++
		}
	}
	return n
}

// UnknownFormat is the error of a log that no known format reads.
type UnknownFormat struct{ Name, Line string }

func (u *UnknownFormat) Error() string {
	if u.Line == "" {
		return u.Name + " has no lines"
	}
	return fmt.Sprintf("%s has lines of no known format, such as %q", u.Name, u.Line)
}

// clip shortens a text for a message.
func clip(text []byte) string {
	const most = 200
	if len(text) <= most {
		return strings.ToValidUTF8(string(text), "\uFFFD")
	}
	return strings.ToValidUTF8(string(text[:most]), "\uFFFD") + "…"
}
