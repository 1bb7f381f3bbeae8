package host

import "github.com/sluice-ratelimit/sluice/filter/internal/explain"

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
