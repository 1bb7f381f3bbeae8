package accesslog

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/target"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The fields that each log may have. HeaderField, JWTField and PropertyField name others.
const (
	FieldTime     = "time"
	FieldMethod   = "method"
	FieldHost     = "host"
	FieldPath     = "path"
	FieldQuery    = "query" // a path that has its query
	FieldClientIP = "client_ip"
	FieldStatus   = "status"
	FieldRoute    = "route"
	FieldTook     = "duration" // has a unit, or is in a log whose unit is known
	FieldReceived = "request_bytes"
	FieldSent     = "response_bytes"

	headerPrefix   = "header:"
	jwtPrefix      = "jwt:"
	propertyPrefix = "property:"
)

// JWTNamespace is where Envoy keeps the claims of JWTs, in a request's metadata.
const JWTNamespace = "envoy.filters.http.jwt_authn"

// field is one thing that a log may say of a request.
type field struct {
	name string
	// set gives the field of a request a value. It reports whether the text is a value of the field.
	set func(p *place, r *Request, text string) bool

	operator string        // of Envoy, which logs the field
	variable string        // of nginx, which logs the field
	unit     time.Duration // of a name for --map: the field is FieldTook, and its values are numbers of this unit
}

// fields are all fields with a name of their own, as --map takes them. names.go says what logs call
// them.
var fields = []field{
	{name: FieldTime, set: setTime, operator: "START_TIME", variable: "time_iso8601"},
	{name: FieldMethod, set: setMethod, operator: "REQ(:METHOD)", variable: "request_method"},
	{name: FieldHost, set: setHost, operator: "REQ(:AUTHORITY)", variable: "http_host"},
	{name: FieldPath, set: setPath, operator: "REQ(:PATH)", variable: "request_uri"},
	{name: FieldClientIP, set: setClientIP, operator: "DOWNSTREAM_REMOTE_ADDRESS", variable: "remote_addr"},
	{name: FieldStatus, set: setStatus, operator: "RESPONSE_CODE", variable: "status"},
	{name: FieldRoute, set: setRoute, operator: "ROUTE_NAME"},
	{name: FieldTook, set: setTook},
	{name: "duration_s", unit: time.Second},
	{name: "duration_ms", unit: time.Millisecond},
	{name: "duration_us", unit: time.Microsecond},
	{name: "duration_ns", unit: time.Nanosecond},
	{name: FieldReceived, set: setReceived, operator: "BYTES_RECEIVED"},
	{name: FieldSent, set: setSent, operator: "BYTES_SENT"},
}

// families are the fields that a prefix begins, and what stands behind it.
var families = []struct{ prefix, rest string }{
	{headerPrefix, "NAME"}, {jwtPrefix, "PROVIDER:CLAIM"}, {propertyPrefix, "PATH"},
}

// HeaderField names the field of a request header, in lower case.
func HeaderField(name string) string { return headerPrefix + name }

// JWTField names the field of a claim. Colons join the segments of its path, as in
// Envoy's DYNAMIC_METADATA.
func JWTField(provider string, claim []string) string {
	return jwtPrefix + provider + ":" + strings.Join(claim, ":")
}

// PropertyField names the field of an attribute.
func PropertyField(path []string) string { return propertyPrefix + strings.Join(path, ".") }

// fieldNamed returns the field of a name, nil = there is none, or it is of a family.
func fieldNamed(name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

// CheckMap rejects names that no field has, and two names of the same field.
func CheckMap(names map[string]string) error {
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := checkField(name); err != nil {
			return err
		}
		field, _ := mappedField(name)
		switch {
		case names[name] == "":
			return fmt.Errorf("%s= needs a name behind it", name)
		case seen[field] != "":
			return fmt.Errorf("%s and %s are the same field", seen[field], name)
		}
		seen[field] = name
	}
	return nil
}

// mappedField returns the field that a name of --map means, and the unit of its numbers.
func mappedField(name string) (field string, unit time.Duration) {
	if f := fieldNamed(name); f != nil && f.unit > 0 {
		return FieldTook, f.unit
	}
	return name, 0
}

// checkField rejects a name that no field has.
func checkField(name string) error {
	if fieldNamed(name) != nil {
		return nil
	}
	var all []string
	for i := range fields {
		all = append(all, fields[i].name)
	}
	for _, f := range families {
		if strings.HasPrefix(name, f.prefix) && name != f.prefix {
			return nil
		}
		all = append(all, f.prefix+f.rest)
	}
	last := len(all) - 1
	return fmt.Errorf("%q is not a field of a request: the fields are %s and %s", name, strings.Join(all[:last], ", "),
		all[last])
}

// howToLog returns how Envoy and nginx log a field; empty = it cannot be said.
func howToLog(name string) (operator, variable string) {
	if header, ok := strings.CutPrefix(name, headerPrefix); ok {
		return "REQ(" + strings.ToUpper(header) + ")", "http_" + strings.ReplaceAll(header, "-", "_")
	}
	if claim, ok := strings.CutPrefix(name, jwtPrefix); ok {
		return "DYNAMIC_METADATA(" + JWTNamespace + ":" + claim + ")", ""
	}
	if f := fieldNamed(name); f != nil {
		return f.operator, f.variable
	}
	return "", ""
}

// Why a line is left out although it was read whole.
var (
	errNoHTTP  = errors.New("it has no request")
	errComment = errors.New("it is a comment")
	errBadPath = errors.New("it has a path that Envoy answers 400")
)

// set gives the field of a request a line's value.
func (p *place) set(r *Request, text string) error {
	value := text
	if p.isLine && text != "" { // a connection that brought no HTTP has another text, or -
		part, ok := cutRequestLine(text, p.field)
		if !ok {
			return errNoHTTP
		}
		value = part
	}
	switch {
	case text == "" || text == "-" || p.field == FieldTook && text == "-1":
		return nil
	case p.most > 0 && len(text) >= p.most && p.field != FieldStatus: // a status is never longer
		return fmt.Errorf("%s is %q, and the format cuts it off at %d bytes", p.name, clip(text), p.most)
	}
	p.had = true
	if !p.setText(r, value) {
		return fmt.Errorf("%s is %q, which is not %s", p.name, clip(text), p.kind())
	}
	return nil
}

// kind says what a value should be.
func (p *place) kind() string {
	switch {
	case p.field == FieldTime:
		return "a time with a zone, between 1971 and now, in a known form"
	case p.field == FieldClientIP:
		return "an address"
	case p.field == FieldTook && p.unit == 0:
		return "a duration with a unit, as 0.4s: if it is a number of milliseconds, say --map duration_ms=" + p.name +
			"; there are duration_s, duration_us and duration_ns, too"
	}
	return "a " + p.field
}

// setText gives the field of a request a text. It reports whether that is a value of the field.
func (p *place) setText(r *Request, text string) bool {
	if f := fieldNamed(p.field); f != nil {
		return f.set(p, r, text)
	}
	if header, ok := strings.CutPrefix(p.field, headerPrefix); ok {
		r.Headers = append(r.Headers, [2]string{header, text})
	} else if claim, ok := strings.CutPrefix(p.field, jwtPrefix); ok {
		r.Claims = append(r.Claims, Claim{Path: strings.Split(claim, ":"), Text: text})
	} else if path, ok := strings.CutPrefix(p.field, propertyPrefix); ok {
		r.Properties = append(r.Properties, [2]string{path, text})
	}
	return true
}

func setTime(p *place, r *Request, text string) (ok bool) {
	read := p.time
	if read == nil {
		read = anyTime
	}
	r.Ns, ok = read(text)
	return ok
}

func setTook(p *place, r *Request, text string) bool {
	took, ok := duration(text, p.unit)
	r.TookNs = int64(min(time.Duration(r.TookNs)+took, maxTook)) // a sum has several values
	return ok
}

func setReceived(_ *place, r *Request, text string) (ok bool) {
	r.Received, ok = count(text, math.MaxInt64)
	return ok
}

func setSent(_ *place, r *Request, text string) (ok bool) {
	r.Sent, ok = count(text, math.MaxInt64)
	return ok
}

func setStatus(_ *place, r *Request, text string) bool {
	status, ok := count(text, 999)
	r.Status = int(status)
	return ok
}

func setMethod(_ *place, r *Request, text string) bool {
	r.Method = text
	return policy.IsToken(text)
}

func setHost(_ *place, r *Request, text string) bool {
	r.Host = text
	if host, _ := cutURL(text); host != "" {
		r.Host = host
	}
	return true
}

func setPath(_ *place, r *Request, text string) bool {
	r.Path = text
	return true
}

func setClientIP(_ *place, r *Request, text string) bool {
	r.ClientIP = address(text)
	return r.ClientIP != ""
}

func setRoute(_ *place, r *Request, text string) bool {
	r.Route = text
	return true
}

// finish checks a request that has all values of its line, and gives it the time at which
// it began and the path that Envoy routes by.
func (f *format) finish(r *Request) error {
	hasRequest := f.places.of(FieldMethod) != nil || f.places.of(FieldPath) != nil
	switch {
	case hasRequest && r.Method == "" && r.Path == "":
		return errNoHTTP
	case r.Ns == 0:
		return errors.New("it has no time")
	}
	for _, must := range [...]struct{ field, value string }{
		{FieldMethod, r.Method}, {FieldPath, r.Path}, {FieldHost, r.Host}, {FieldClientIP, r.ClientIP},
	} {
		if p := f.places.of(must.field); p != nil && p.needed && must.value == "" {
			return fmt.Errorf("it has no %s", must.field)
		}
	}
	if f.places.of(FieldTime).isEnd {
		r.Ns -= r.TookNs
	}
	if r.Path == "" {
		return nil
	}
	_, path := cutURL(r.Path)
	routed, _, err := target.Normalize(path)
	if err != nil {
		return errBadPath
	}
	r.Path = routed
	return nil
}
