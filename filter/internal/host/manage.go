package host

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/explain"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/origin"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// managed answers a management request: one under the policy's path. It reports
// whether the request is one.
//
//	POST {path}counters/OPERATION?rule=NAME&key=PART&key=PART&n=UNITS&window=NAME
//
// carries out an operation: see engine.Operate. For
//
//	POST {path}explain
//
// see explain.
func (p *plugin) managed() bool {
	target, _ := theProxy.Header(":path")
	rest, under := strings.CutPrefix(target, p.manage.Path)
	if !under {
		return false
	}
	p.answerManagement(rest)
	return true
}

// answerManagement answers every request: it carries the token, which must not go upstream.
func (p *plugin) answerManagement(rest string) {
	if !p.onManagePort() {
		replyJSON(404, problem("management requests are answered on another port"))
		return
	}
	switch p.authorize() {
	case 401:
		replyJSON(401, problem("a bearer token that the policy's manage.token_sha256 knows is required"))
		return
	case 429:
		replyJSON(429, problem("too many wrong tokens from this address: wait a second"),
			respond.Field{Name: "retry-after", Value: "1"})
		return
	}
	path, query, _ := strings.Cut(rest, "?")
	op, onCounters := strings.CutPrefix(path, "counters/")
	switch method, _ := theProxy.Header(":method"); {
	case !onCounters && path != "explain":
		replyJSON(404, problem("there is nothing here: try "+p.manage.Path+"counters/peek"))
	case method != "POST":
		replyJSON(405, problem("management requests are made by POST"))
	case p.quota == nil:
		p.answerAbout(onCounters, op, query)
	default:
		p.engine.Cluster.AssumeSilent(p.quota.isSilentByOthers(), func() { p.answerAbout(onCounters, op, query) })
	}
}

func (p *plugin) answerAbout(onCounters bool, op, query string) {
	if onCounters {
		p.operate(op, query)
	} else {
		p.explain()
	}
}

func (p *plugin) operate(op, query string) {
	asked, fault := readOperation(op, query)
	if fault != "" {
		replyJSON(400, problem(fault))
		return
	}
	if op == "stats" {
		p.flushMetrics() // the other workers' counts are up to a tick old
	}
	text, err := p.engine.Operate(asked)
	switch {
	case errors.Is(err, local.ErrStore):
		replyJSON(500, problem(err.Error()))
	case err != nil:
		replyJSON(400, problem(err.Error()))
	default:
		replyJSON(200, text)
	}
}

// readOperation reads an operation's query. The fault says what is wrong with it,
// "" if nothing is.
func readOperation(op, query string) (asked engine.Operation, fault string) {
	if fault := queryFault(query); fault != "" {
		return asked, "parse the query: " + fault
	}
	asked = engine.Operation{Name: op, N: 1}
	n := ""
	once := map[string]*string{"rule": &asked.Rule, "n": &n, "window": &asked.Window}
	given := map[string]bool{}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, value = policy.UnescapeQuery(name), policy.UnescapeQuery(value)
		into, known := once[name]
		switch {
		case name == "key":
			asked.Key = append(asked.Key, value)
		case name == "limit":
			asked.Limits = append(asked.Limits, value)
		case !known:
			start := strconv.Quote(name[:min(len(name), 40)])
			return asked, "unknown parameter " + start + ": there are rule, key, n, limit and window"
		case given[name]:
			return asked, name + " is given twice"
		default:
			*into, given[name] = value, true
		}
	}
	if n == "" && op != "set" {
		return asked, ""
	}
	units, err := strconv.ParseUint(n, 10, 32)
	if err != nil {
		return asked, "n must be a whole number from 0 to 4294967295"
	}
	asked.N = uint32(units)
	return asked, ""
}

// queryFault says what is wrong with a query: a broken escape would name another
// key than was meant.
func queryFault(query string) string {
	if strings.Contains(query, ";") {
		return `parameters are separated by "&"; a ";" in one is written %3B`
	}
	_, rest, more := strings.Cut(query, "%")
	for more {
		digits := rest[:min(2, len(rest))]
		if _, err := strconv.ParseUint(digits, 16, 8); err != nil || len(digits) < 2 {
			return "invalid escape " + strconv.Quote("%"+digits) + `: a "%" is written %25`
		}
		_, rest, more = strings.Cut(rest, "%")
	}
	return ""
}

// onManagePort reports whether the request came in on the port to which the
// policy, or else the node's metadata, confines management.
func (p *plugin) onManagePort() bool {
	if p.managePort == 0 {
		return true
	}
	port, ok := theProxy.Attribute("destination\x00port")
	return ok && len(port) == 8 && binary.LittleEndian.Uint64([]byte(port)) == uint64(p.managePort)
}

// confine reads the port on which management requests are answered. A rendered
// bootstrap names the port of its management listener, so that a policy without
// a port does not open the other listeners.
func (p *plugin) confine() {
	if p.manage == nil {
		return
	}
	text, _ := theProxy.Attribute("xds\x00node\x00metadata\x00sluice\x00manage_port")
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		port = 0
	}
	p.managePort = cmp.Or(p.manage.Port, uint16(port))
}

// maxBearer bounds the tokens that are hashed.
const maxBearer = 1 << 10

// authorize returns the status for the request's token: 200, 401, or 429 if its
// address has sent too many wrong ones.
func (p *plugin) authorize() int {
	header, _ := theProxy.JoinedHeader("authorization")
	scheme, token, _ := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "bearer") || token == "" || len(token) > maxBearer {
		return 401
	}
	address, _ := theProxy.ClientAddress()
	from, now := origin.Of(address), theProxy.Now()
	if p.guesses.Refuses(from, now) {
		return 429
	}
	if sum := sha256.Sum256([]byte(token)); subtle.ConstantTimeCompare(sum[:], p.manage.TokenSHA256[:]) == 1 {
		return 200
	}
	p.guesses.Add(from, now)
	return 401
}

// replyJSON answers a management request.
func replyJSON(status uint32, body []byte, fields ...respond.Field) {
	sendJSON(status, "sluice_management", body, fields)
}

// sendJSON answers a request in the upstream's place. Access logs have the details.
func sendJSON(status uint32, details string, body []byte, fields []respond.Field) {
	fields = append(fields, respond.Field{Name: "content-type", Value: "application/json"})
	theProxy.send(&reply{
		status: status, details: []byte(details), body: append(body, '\n'), grpc: grpcFromStatus,
		headers: appendHeaders(nil, fields),
	})
}

func problem(text string) []byte {
	return append(policy.AppendString([]byte(`{"error":`), text), '}')
}

// requestHeader holds the request to explain. It is a header and no query,
// because access logs contain queries, and a request contains credentials.
const requestHeader = "x-sluice-request"

// explain answers how the policy would decide a described request.
//
//	POST {path}explain
//	x-sluice-request: {"method":"GET","host":"a","path":"/x","headers":{"x-user-id":"alice"},"client_ip":"192.0.2.7"}
func (p *plugin) explain() {
	text, present := theProxy.Header(requestHeader)
	if !present {
		replyJSON(400, problem("the header "+requestHeader+" must describe the request, as in "+
			`{"method":"GET","host":"api.example.com","path":"/","headers":{"x-user-id":"alice"},"client_ip":"192.0.2.7"}`))
		return
	}
	r, err := explain.ParseRequest(text)
	if err != nil {
		replyJSON(400, problem(requestHeader+": "+err.Error()))
		return
	}
	replyJSON(200, explain.Explain(nil, p.engine, &theProxy, r))
}
