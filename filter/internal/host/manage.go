package host

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"net/url"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// managed answers the request if it is a management request: one on the
// policy's path and, if given, on its local port. It reports whether it was.
//
//	POST {path}counters/{peek|hit}?rule=NAME&key=PART&key=PART&n=COST
//
// answers 200 with the verdict as engine.Verdict.AppendReport writes it.
func (p *plugin) managed() bool {
	target, _ := theProxy.Header(":path")
	rest, under := strings.CutPrefix(target, p.manage.Path)
	if !under || !p.onManagePort() {
		return false
	}
	if !p.authorized() {
		answer(401, problem("a bearer token that the policy's manage.token_sha256 knows is required"))
		return true
	}
	path, query, _ := strings.Cut(rest, "?")
	op, known := strings.CutPrefix(path, "counters/")
	if method, _ := theProxy.Header(":method"); known && method != "POST" {
		answer(405, problem("counters are operated on by POST"))
		return true
	}
	if !known {
		answer(404, problem("there is nothing here: try "+p.manage.Path+"counters/peek"))
		return true
	}
	p.operate(op, query)
	return true
}

func (p *plugin) operate(op, query string) {
	defer func() { // not stream's recovery: that may let the request, and its token, go upstream
		if r := recover(); r != nil {
			p.panicked("manage", r)
			answer(500, problem("the operation failed: the proxy's log says why"))
		}
	}()
	values, err := url.ParseQuery(query)
	if err != nil {
		answer(400, problem("parse the query: "+err.Error()))
		return
	}
	cost := uint64(1)
	if text := values.Get("n"); text != "" {
		if cost, err = strconv.ParseUint(text, 10, 32); err != nil {
			answer(400, problem("n must be a whole number from 0 to 4294967295"))
			return
		}
	}
	v, err := p.engine.Operate(engine.Operation(op), values.Get("rule"), values["key"], uint32(cost))
	if err != nil {
		answer(400, problem(err.Error()))
		return
	}
	answer(200, v.AppendReport(nil))
}

// onManagePort reports whether the request came in on the port that the policy
// confines management to.
func (p *plugin) onManagePort() bool {
	if p.manage.Port == 0 {
		return true
	}
	port, ok := theProxy.Property("destination", "port")
	return ok && len(port) == 8 && binary.LittleEndian.Uint64([]byte(port)) == uint64(p.manage.Port)
}

func (p *plugin) authorized() bool {
	header, _ := theProxy.JoinedHeader("authorization")
	scheme, token, _ := strings.Cut(header, " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return strings.EqualFold(scheme, "bearer") && subtle.ConstantTimeCompare(sum[:], p.manage.TokenSHA256[:]) == 1
}

func answer(status uint32, body []byte) {
	theProxy.send(&reply{
		status: status, details: []byte("sluice_management"), body: string(append(body, '\n')), grpc: grpcFromStatus,
		headers: appendHeaders(nil, []engine.Field{{Name: "content-type", Value: "application/json"}}),
	})
}

func problem(text string) []byte {
	return append(policy.AppendString([]byte(`{"error":`), text), '}')
}
