package host

import (
	"strconv"
	"strings"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/settle"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
)

// What the proxy knows of the answer to a request that holds units: whether it is one, what it
// says of usage while it passes, and all that settling asks for at its end.

// What the proxy says of how a response came about.
const (
	codeDetails   = "response\x00code_details"
	responseFlags = "response\x00flags"
)

// Bits of responseFlags, by Envoy's names for them.
const (
	upstreamRequestTimeout     = 1 << 2
	localReset                 = 1 << 3
	upstreamRemoteReset        = 1 << 4
	upstreamConnectionEnded    = 1 << 6
	downstreamConnectionEnded  = 1 << 14
	streamIdleTimeout          = 1 << 16
	downstreamProtocolError    = 1 << 18
	upstreamMaxDurationReached = 1 << 19
	durationTimeout            = 1 << 22
	upstreamProtocolError      = 1 << 23
	overloadManager            = 1 << 25
	downstreamRemoteReset      = 1 << 28
)

// timeoutFlags are the proxy's flags of requests whose time was up: of the route or of a try, while
// nothing came, of the upstream's stream and of the connection.
const timeoutFlags = upstreamRequestTimeout | streamIdleTimeout | upstreamMaxDurationReached | durationTimeout

// abandonedFlags are the proxy's flags of requests that it has reset at the upstream, which may
// be at work on them still: the client's connection or stream has ended or broken the
// protocol, the upstream has broken it, a time was up, or the proxy had to save memory.
const abandonedFlags = downstreamConnectionEnded | downstreamRemoteReset | downstreamProtocolError |
	upstreamProtocolError | timeoutFlags | localReset | overloadManager

// brokenFlags are the proxy's flags of a request that an upstream has taken and broken off, or
// answered with what is no answer.
const brokenFlags = upstreamRemoteReset | upstreamConnectionEnded | upstreamProtocolError

// abandoned reports whether the upstream may be at work still on the stream that ends.
func abandoned() bool {
	if theProxy.amount(responseFlags)&abandonedFlags != 0 {
		return true
	}
	details, _ := theProxy.Attribute(codeDetails)
	return details == maxDuration
}

// Details of times that were up, which have no flags: of the stream, which the client may choose by
// grpc-timeout, and of the request, which the client did not send in time.
const (
	maxDuration    = "max_duration_timeout"
	requestTimeout = "request_overall_timeout"
)

// gaveUp reports whether the details are those of an answer that the proxy gives because the
// upstream gave none, or not all of it: it broke off, or a time was up.
func gaveUp(details string) bool {
	switch {
	case details == "via_upstream":
		return false
	case strings.HasPrefix(details, "upstream_reset_after_response_started"):
		return true
	case strings.HasPrefix(details, "upstream_reset_before_response_started"):
		return theProxy.amount(responseFlags)&(brokenFlags|timeoutFlags) != 0
	}
	return details == maxDuration || details == requestTimeout || theProxy.amount(responseFlags)&timeoutFlags != 0
}

// readHeaders notes whether the headers that have come are those of an answer, and begins to read its
// usage.
func (s *stream) readHeaders(hasBody bool) {
	details, _ := theProxy.Attribute(codeDetails)
	if gaveUp(details) {
		return
	}
	s.status = theProxy.Status()
	if hasBody {
		s.beginScan()
	}
}

const (
	bufferResponseBody  = 1
	mapResponseTrailers = 3

	// maxScans is the most for scansNow. Each takes some kilobytes.
	maxScans = 16_384
	// maxIdleScans is how many scanners are kept to be re-used.
	maxIdleScans = 64
)

var (
	scansNow     int  // how many answers the worker reads
	saysWithheld bool // it is logged once that the proxy shows no bodies
)

// statusSwitching is of an answer that is not one: its body is another protocol's.
const statusSwitching = 101

// beginScan begins to read an answer's body if a hold asks for its usage.
func (s *stream) beginScan() {
	reads, prices := s.readsUsage(s.status)
	if s.status == statusSwitching || !reads {
		return
	}
	p := s.plugin
	if scansNow == maxScans {
		s.countUnread(func(m *metrics.Set) { m.UnreadTooMany++ })
		return
	}
	scansNow++
	if n := len(p.idleScans); n > 0 {
		s.scan, p.idleScans = p.idleScans[n-1], p.idleScans[:n-1]
	} else {
		s.scan = new(usage.Scanner)
	}
	contentType, _ := theProxy.header(mapResponseHeaders, "content-type")
	encoding, _ := theProxy.header(mapResponseHeaders, "content-encoding")
	s.scan.Reset(contentType, encoding)
	if prices {
		s.scan.ReadModel()
	}
}

// readsUsage reports whether some hold needs the usage of an answer with that status, and whether one
// needs the model, too.
func (s *stream) readsUsage(status uint16) (reads, prices bool) {
	for i := range s.holds {
		if p := s.holds[i].Rule.Policy.Settle; p != nil && p.To.Tokens() && settle.MeetsStatus(&p.When, status) {
			reads = true
			prices = prices || len(p.Prices) > 0
		}
	}
	return reads, prices
}

func (s *stream) countUnread(count func(m *metrics.Set)) {
	for i := range s.holds {
		if h := &s.holds[i]; h.Rule.Policy.Settle != nil && h.Rule.Policy.Settle.To.Tokens() {
			count(h.Rule.Metrics)
		}
	}
}

// endScan returns the usage in the answer, and whether it was read, to its end or to where it
// was cut.
func (s *stream) endScan(a *ended) (found usage.Usage, ok bool) {
	if s.scan == nil {
		return usage.Usage{}, false
	}
	method, _ := theProxy.Attribute("request\x00method") // which the proxy did not tell before
	found, ok = s.scan.End(), method != "CONNECT"        // a tunnel, whose bytes are no answer
	switch {
	case !ok:
	case found.Bytes == 0 && a.ResponseBytes() > 0:
		ok = false
		s.countUnread(func(m *metrics.Set) { m.UnreadWithheld++ })
		if !saysWithheld {
			saysWithheld = true
			proxywasm.LogError("sluice: the proxy shows no bodies of answers: " +
				"allow proxy_on_response_body in its list of capabilities")
		}
	case found.Failure != usage.None:
		s.countUnread(func(m *metrics.Set) { m.Unread[found.Failure]++ })
	}
	scansNow--
	if p := s.plugin; len(p.idleScans) < maxIdleScans {
		p.idleScans = append(p.idleScans, s.scan)
	}
	s.scan = nil
	return found, ok
}

// end returns what is known of the answer at the stream's end. redirected says that the proxy sends
// the request on as a new one, which will be decided by itself.
func (s *stream) end() (a ended, redirected bool) {
	a.status = theProxy.Status()
	if s.status == 0 || s.status != a.status { // a filter may hold an answer back until its time is up
		details, _ := theProxy.Attribute(codeDetails)
		redirected = details == "internal_redirect"
		a.gaveUp = gaveUp(details)
	}
	a.usage, a.read = s.endScan(&a)
	return a, redirected
}

// ended is what the proxy knows of the answer whose stream is at its end.
type ended struct {
	usage  usage.Usage
	read   bool // usage was read
	status uint16
	gaveUp bool // the upstream gave no answer: what the client got is the proxy's own
}

func (a *ended) Status() uint16 {
	if a.gaveUp {
		return 0
	}
	return a.status
}

// GRPCStatus reads the header or the trailer: of an answer that was cut, or is none of gRPC's,
// the proxy has a number of its own.
func (*ended) GRPCStatus() int {
	text, present := theProxy.header(mapResponseTrailers, "grpc-status")
	if !present {
		text, present = theProxy.header(mapResponseHeaders, "grpc-status")
	}
	if n, err := strconv.ParseUint(text, 10, 16); present && err == nil {
		return int(n) // fits: 16 bits
	}
	return -1
}

func (*ended) Header(name string) (string, bool) {
	return theProxy.header(mapResponseHeaders, name)
}

func (*ended) Trailer(name string) (string, bool) {
	return theProxy.header(mapResponseTrailers, name)
}

func (*ended) HeaderValues(name string) []string {
	return theProxy.headerValues(nil, mapResponseHeaders, name)
}

// RequestBytes is what has come without the headers. What the proxy calls the request's size is
// what the client has announced.
func (*ended) RequestBytes() int64 {
	headers := sizeOfPairs(theProxy.pairs(mapRequestHeaders))
	return max(theProxy.amount("request\x00total_size")-headers, 0)
}

func (a *ended) ResponseBytes() int64 {
	if a.gaveUp {
		return 0
	}
	return theProxy.amount("response\x00size")
}

func (*ended) DurationNs() int64 { return theProxy.amount("request\x00duration") }

func (a *ended) Usage() (usage.Usage, bool) { return a.usage, a.read }

func (*ended) Path() string {
	path, _ := theProxy.Attribute("request\x00path")
	return path
}
