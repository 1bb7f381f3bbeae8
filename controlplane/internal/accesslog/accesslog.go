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
// runtime wrote around it. text.go or object.go cut it into values. fields.go puts each value
// into its field of the request, values.go reads the value's text, and log.go merges the
// requests of all files. Before that, Open looks into each file: formats.go finds out which
// format the file has, and names.go which of the format's values are which fields.
package accesslog

import (
	"io"
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

	Claims     []Claim     // of its JWTs, as far as they were asked for
	Properties [][2]string // attributes that were asked for, by path, whose segments points join
}

// Claim is one claim of a JWT.
type Claim struct {
	Path []string // the provider, then the segments of the claim's own path
	Text string
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
