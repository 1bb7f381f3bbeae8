package policytest

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// Request is a request as a proxy hands it to the filter: its path is normalized and its client's
// address is known. What is empty has the default named.
type Request struct {
	Method   string // GET
	Host     string // localhost
	Path     string // /
	Header   http.Header
	ClientIP string // 127.0.0.1
	Route    string // name of the route

	// JWT has the claims that a filter before this one has verified, by provider.
	JWT map[string]map[string]any
	// Metadata is what other filters have set, by namespace.
	Metadata map[string]map[string]any
	// Properties are what else the proxy knows, by paths such as connection.mtls.
	Properties map[string]string

	Body      string // sets content-length
	BodyBytes int    // in place of Body: its length alone

	Proxy *int  // that gets it, from 0; nil: they get requests in turn
	Fault Fault // while the request is decided

	Answer *Answer // of the upstream; nil: 200 without a body, at once
}

// Fault is what fails while a request is decided.
type Fault string

// The faults.
const (
	QuotaFault Fault = "quota" // the quota service cannot be reached
	GetFault   Fault = "get"   // the filter cannot read counters
	SetFault   Fault = "set"   // the filter cannot write counters
)

// Answer is how the upstream answers a request.
type Answer struct {
	Status  int // 200
	Header  http.Header
	JSON    any    // becomes the body, with content-type application/json
	Body    string // in place of JSON
	Trailer http.Header
	Took    time.Duration // time until the answer
	Broken  Broken        // what ends the request before its answer does
}

// Broken says why an answer does not come, or breaks off behind what there is of it. An Answer with
// neither status nor body does not come.
type Broken string

// The reasons.
const (
	ClientGone      Broken = "client"   // the client disconnects
	UpstreamReset   Broken = "upstream" // the upstream resets the request
	UpstreamTimeout Broken = "timeout"  // the upstream has not begun to answer within the route's time
)

var causes = map[Broken]sim.Cause{
	ClientGone: sim.ClientGone, UpstreamReset: sim.UpstreamReset, UpstreamTimeout: sim.UpstreamTimeout,
}

// FieldError says what is wrong with a field of a Request or of an Answer. Its text names the field
// as Go does.
type FieldError struct {
	Field string // its name in test files, such as body_bytes
	Why   string
}

// Error implements error.
func (e *FieldError) Error() string { return inGo[e.Field] + ": " + e.Why }

// inGo has the names in Go of the fields that may be wrong.
var inGo = map[string]string{
	"method": "Method", "path": "Path", "headers": "Header", "client_ip": "ClientIP", "body_bytes": "BodyBytes",
	"status": "Status", "body": "Body", "no_answer": "Broken",
}

// Check says what is wrong with a request that no proxy would show to the filter: a *FieldError.
func (r *Request) Check() error {
	described := simulate.Request{
		Method: r.Method, Host: r.Host, Path: r.Path, ClientIP: r.ClientIP, Headers: map[string]simulate.Values{},
	}
	for name, values := range r.Header {
		described.Headers[name] = values
	}
	if r.BodyBytes < 0 || r.BodyBytes > 0 && r.Body != "" {
		return &FieldError{"body_bytes", "it is the length of a body that is not given, from 0"}
	}
	err := described.Check()
	var wrong *simulate.FieldError
	if errors.As(err, &wrong) {
		return &FieldError{wrong.Field, wrong.Why}
	}
	return err
}

// isBegun reports whether something of the answer comes: else the request may end without one, see Broken.
func (a *Answer) isBegun() bool { return a.Status != 0 || a.Body != "" || a.JSON != nil }

// Check says what is wrong with an answer that no upstream gives: a *FieldError.
func (a *Answer) Check() error {
	const upgraded, first, last = http.StatusSwitchingProtocols, http.StatusOK, 599
	_, isKnown := causes[a.Broken]
	switch {
	case a.Status != 0 && a.Status != upgraded && (a.Status < first || a.Status > last):
		return &FieldError{"status", "is not a status of an answer: it must be from 200 to 599, or 101"}
	case a.JSON != nil && a.Body != "":
		return &FieldError{"body", "does not go with json: keep one of the two"}
	case a.Broken == "":
		return nil
	case !isKnown:
		return &FieldError{"no_answer", fmt.Sprintf("must be client, upstream or timeout, not %q", a.Broken)}
	case a.Trailer != nil:
		return &FieldError{"no_answer", "does not go with trailers, which end an answer: keep one of the two"}
	case a.isBegun() && a.Broken == UpstreamTimeout:
		return &FieldError{"no_answer", "a time-out ends a request before its answer begins: " +
			"remove status and body, or write upstream"}
	case !a.isBegun() && a.Header != nil:
		return &FieldError{"headers", "an answer that does not begin has none: write status beside them, or remove them"}
	}
	return nil
}
