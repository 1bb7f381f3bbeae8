// Package accesslog reads the access logs of Envoy, nginx, Caddy, load balancers and what
// writes like them, and returns their requests in the order of time, with the paths that
// Envoy routes by.
//
// Its invariant: a line is read as exactly one request or counted as left out. A line
// that could be read in two ways, because a client wrote the separators of the format
// into a header, is unknown; a file that is damaged or cut ends with an error. What was
// recognized is in Stats.Readings. Memory is bounded, whatever a log holds. It must never
// import a policy's rules or the filter.
package accesslog

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Request is one line of a log. Texts that the line lacks are empty.
type Request struct {
	Ns       int64 // when it began; where the log says only when it ended, then
	TookNs   int64 // until its end; 0 = unknown, as are bytes
	Status   int   // 0 = unknown
	Received int64 // bytes of the request's body
	Sent     int64 // bytes of the answer's
	Method   string
	Host     string
	Path     string // as Envoy routes it, with its query
	ClientIP string // without port
	Route    string
	Headers  [][2]string // a header that stands there twice is there twice
	Values   [][2]string // other fields that were asked for, by name
}

// Options say what to read.
type Options struct {
	Names  []string          // files, and - for In
	In     io.Reader         // standard input
	Format string            // the name of a format, or its text; empty = recognize it
	Map    map[string]string // what a field is called in the log, by the field's name
	Fields []string          // that the reader of the requests needs, beside the time
	Wanted []string          // those that it takes where the log has them

	Sort time.Duration // how far from its place a line may stand
}

// The fields that each log may have. Others are HeaderField and its like.
const (
	FieldTime     = "time"
	FieldMethod   = "method"
	FieldHost     = "host"
	FieldPath     = "path"
	FieldQuery    = "query" // in the path
	FieldClientIP = "client_ip"
	FieldStatus   = "status"
	FieldRoute    = "route"
	FieldTook     = "duration" // with a unit, or in a log that is known
	FieldReceived = "request_bytes"
	FieldSent     = "response_bytes"

	secondsField      = "duration_s" // a duration that is a number
	millisecondsField = "duration_ms"
	microsecondsField = "duration_us"
	nanosecondsField  = "duration_ns"

	headerPrefix   = "header:"
	jwtPrefix      = "jwt:"
	propertyPrefix = "property:"
)

const jwtNamespace = "envoy.filters.http.jwt_authn"

// HeaderField names the field of a request header, in lower case.
func HeaderField(name string) string { return headerPrefix + name }

// JWTField names the field of a claim. The segments of its path are joined by colons,
// as in Envoy's DYNAMIC_METADATA.
func JWTField(provider string, claim []string) string {
	return jwtPrefix + provider + ":" + strings.Join(claim, ":")
}

// PropertyField names the field of an attribute.
func PropertyField(path []string) string { return propertyPrefix + strings.Join(path, ".") }

// operators are what has Envoy log a field, and variables what has nginx.
var (
	operators = map[string]string{
		FieldTime: "START_TIME", FieldMethod: "REQ(:METHOD)", FieldHost: "REQ(:AUTHORITY)", FieldPath: "REQ(:PATH)",
		FieldQuery: "REQ(:PATH)", FieldClientIP: "DOWNSTREAM_REMOTE_ADDRESS", FieldStatus: "RESPONSE_CODE", FieldRoute: "ROUTE_NAME",
		FieldReceived: "BYTES_RECEIVED", FieldSent: "BYTES_SENT",
	}
	variables = map[string]string{
		FieldTime: "time_iso8601", FieldMethod: "request_method", FieldHost: "http_host", FieldPath: "request_uri",
		FieldQuery: "request_uri", FieldClientIP: "remote_addr", FieldStatus: "status",
	}
)

// CheckMap refuses names that are none of a field, and two of the same field.
func CheckMap(names map[string]string) error {
	said := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := checkField(name); err != nil {
			return err
		}
		field := mapped(name).field
		switch {
		case names[name] == "":
			return fmt.Errorf("%s= has no name behind it", name)
		case said[field] != "":
			return fmt.Errorf("%s and %s are the same field", said[field], name)
		}
		said[field] = name
	}
	return nil
}

func checkField(name string) error {
	if mapped(name).field == FieldTook || operators[name] != "" && name != FieldQuery {
		return nil
	}
	for _, prefix := range []string{headerPrefix, jwtPrefix, propertyPrefix} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			return nil
		}
	}
	return fmt.Errorf("%q is no field of a request: there are time, method, host, path, client_ip, status, route, "+
		"duration, duration_s, duration_ms, duration_us, duration_ns, request_bytes, response_bytes, "+
		"header:NAME, jwt:PROVIDER:CLAIM and property:PATH", name)
}
