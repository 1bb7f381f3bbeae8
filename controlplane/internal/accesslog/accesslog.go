// Package accesslog reads the access logs of Envoy, nginx, Caddy, load balancers and
// programs that write like them. It returns their requests in the order of time, with
// the paths that Envoy routes by.
//
// Its invariant: a line is read as exactly one request, or it is counted as left out. A
// client can write the separators of a format into a header; such a line fits no format
// (text.go says why). A file that is damaged or cut off ends with an error. Memory is
// bounded, whatever a log holds. The package must never import a policy's rules or the
// filter.
//
// The way of a line: lines.go takes it out of the file, and out of what a container's
// runtime wrote around it. text.go or object.go cut it into values. fields.go says which
// field of a request each value is, values.go what its text means, and log.go merges the
// requests of all files. Before, open.go looks into each file, and formats.go finds out which
// format it has.
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
	Ns       int64 // when it began; if the log says only when it ended, then that
	TookNs   int64 // until its end; 0 = unknown, like the numbers of bytes
	Status   int   // 0 = unknown
	Received int64 // bytes of the request's body
	Sent     int64 // bytes of the answer's body
	Method   string
	Host     string
	Path     string // as Envoy routes it, with its query
	ClientIP string // without port
	Route    string
	Headers  [][2]string // a header that the line has twice is here twice
	Values   [][2]string // other fields that were asked for, by name
}

// Options say what to read.
type Options struct {
	Names  []string          // files, and - for In
	In     io.Reader         // standard input
	Format string            // the name of a format, or the format itself; empty = find out
	Map    map[string]string // by field, the name that the log has for it
	Fields []string          // fields that each log must have, beside the time
	Wanted []string          // fields that are read if the log has them

	Sort time.Duration // by how much time lines may be out of order
}

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

// durationUnits are the fields of durations that are numbers, with their units.
var durationUnits = map[string]time.Duration{
	"duration_s": time.Second, "duration_ms": time.Millisecond,
	"duration_us": time.Microsecond, "duration_ns": time.Nanosecond,
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

// CheckMap rejects names that no field has, and two names of the same field.
func CheckMap(names map[string]string) error {
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := checkField(name); err != nil {
			return err
		}
		field, _ := fieldOf(name)
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

// fieldOf returns the field that a name of --map means, and the unit of its numbers.
func fieldOf(name string) (field string, unit time.Duration) {
	if unit, ok := durationUnits[name]; ok {
		return FieldTook, unit
	}
	return name, 0
}

func checkField(name string) error {
	switch name {
	case FieldTime, FieldMethod, FieldHost, FieldPath, FieldClientIP, FieldStatus, FieldRoute, FieldTook, FieldReceived,
		FieldSent:
		return nil
	}
	if durationUnits[name] != 0 {
		return nil
	}
	for _, prefix := range []string{headerPrefix, jwtPrefix, propertyPrefix} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			return nil
		}
	}
	return fmt.Errorf("%q is not a field of a request: the fields are time, method, host, path, client_ip, status, "+
		"route, duration, duration_s, duration_ms, duration_us, duration_ns, request_bytes, response_bytes, "+
		"header:NAME, jwt:PROVIDER:CLAIM and property:PATH", name)
}
