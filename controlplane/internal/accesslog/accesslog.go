// Package accesslog reads the access logs of Envoy, nginx, Apache and what writes like
// them, and returns their requests in the order of time.
//
// Its invariant: a line is read as exactly one request or counted as unknown. A line
// that could be read in two ways, because a client wrote the separators of the format
// into a header, is unknown; a file that is damaged or cut ends with an error. Memory
// is bounded, whatever a log holds. It must never import a policy or the filter.
package accesslog

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Request is one line of a log. Texts that the line lacks are empty.
type Request struct {
	Ns       int64 // when it began; where the log says only when it ended, then
	Status   int   // 0 = unknown
	Method   string
	Host     string
	Path     string // with its query
	ClientIP string // without port
	Route    string
	Headers  [][2]string
	Values   [][2]string // other fields that were asked for, by name
}

// Options say what to read.
type Options struct {
	Names  []string          // files, and - for In
	In     io.Reader         // standard input
	Format string            // the name of a format, or its text; empty = find out
	Map    map[string]string // what a field is called in the log, by the field's name
	Fields []string          // that the reader of the requests needs, beside the time

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

	headerPrefix   = "header:"
	jwtPrefix      = "jwt:"
	propertyPrefix = "property:"
)

// HeaderField names the field of a request header, in lower case.
func HeaderField(name string) string { return headerPrefix + name }

// JWTField names the field of a claim. The segments of its path are joined by colons,
// as in Envoy's DYNAMIC_METADATA.
func JWTField(provider string, claim []string) string {
	return jwtPrefix + provider + ":" + strings.Join(claim, ":")
}

// PropertyField names the field of an attribute.
func PropertyField(path []string) string { return propertyPrefix + strings.Join(path, ".") }

// CheckField refuses a name that is none of a field.
func CheckField(name string) error {
	switch name {
	case FieldTime, FieldMethod, FieldHost, FieldPath, FieldClientIP, FieldStatus, FieldRoute:
		return nil
	}
	for _, prefix := range []string{headerPrefix, jwtPrefix, propertyPrefix} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			return nil
		}
	}
	return fmt.Errorf("%q is no field of a request: there are time, method, host, path, client_ip, status, route, "+
		"header:NAME, jwt:PROVIDER:CLAIM and property:PATH", name)
}

// LackingError is the error of a log that does not have a field that is needed.
type LackingError struct {
	Log   string // empty: all logs
	Field string
	JSON  bool
}

func (e *LackingError) Error() string {
	if e.Log == "" {
		return fmt.Sprintf("no line has the field %s, which is needed", e.Field)
	}
	return fmt.Sprintf("%s does not have the field %s, which is needed", e.Log, e.Field)
}

// Hint says how to log the field.
func (e *LackingError) Hint() string {
	field := e.Field
	if field == FieldQuery {
		field = FieldPath
	}
	operator := map[string]string{
		FieldTime: "%START_TIME%", FieldMethod: "%REQ(:METHOD)%", FieldHost: "%REQ(:AUTHORITY)%", FieldPath: "%REQ(:PATH)%",
		FieldClientIP: "%DOWNSTREAM_REMOTE_ADDRESS%", FieldStatus: "%RESPONSE_CODE%", FieldRoute: "%ROUTE_NAME%",
	}[field]
	if name, ok := strings.CutPrefix(field, headerPrefix); ok {
		operator = "%REQ(" + strings.ToUpper(name) + ")%"
	}
	if rest, ok := strings.CutPrefix(field, jwtPrefix); ok {
		operator = "%DYNAMIC_METADATA(" + jwtNamespace + ":" + rest + ")%"
	}
	hint := "if the log has it under another name, say --map " + field + "=NAME"
	if operator != "" {
		hint = "have Envoy log " + operator + "; " + hint
	}
	if e.JSON || field == FieldTime {
		return hint
	}
	return hint + "; a text log's own format is given with --format"
}

const jwtNamespace = "envoy.filters.http.jwt_authn"
