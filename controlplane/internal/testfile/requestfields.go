package testfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

var headersShape = choiceShape("test_headers")

var requestObject = &object[policytest.Request]{"test_request", []field[policytest.Request]{
	textOf("method", "Default GET.", func(q *policytest.Request) *string { return &q.Method }),
	textOf("host", "Default localhost.", func(q *policytest.Request) *string { return &q.Host }),
	textOf("path", "As the proxy normalizes it, with its query; default /.",
		func(q *policytest.Request) *string { return &q.Path }),
	{"headers", headersShape, "A header's value, or a list of values; an empty list removes a header that the test's " +
		"request has.", readRequestHeaders},
	textOf("client_ip", "The client's address, as the proxy trusts it; default 127.0.0.1.",
		func(q *policytest.Request) *string { return &q.ClientIP }),
	textOf("route", "Name of Envoy's route.", func(q *policytest.Request) *string { return &q.Route }),
	{"jwt", choiceShape("claims"), "Claims that jwt_authn has verified, by provider.", readJWT},
	{"metadata", choiceShape("metadata"), "What other filters of Envoy have set, by namespace.", readMetadata},
	{"properties", choiceShape("properties"), "Other properties of Envoy, by path: points join its segments.",
		readProperties},
	{"body", bodyShape, "The body; it sets content-length.", readRequestBody},
	{"body_bytes", integerShape(0, maxBody), "How long the body is, in place of body.", readBodyBytes},
}}

// textOf is the row of a field that is text.
func textOf(name, text string, to func(*policytest.Request) *string) field[policytest.Request] {
	read := func(r *reader, n *policy.Node, _ policy.Shape, q *policytest.Request) { *to(q), _ = r.text(n) }
	return field[policytest.Request]{name, textShape, text, read}
}

func readRequestHeaders(r *reader, n *policy.Node, shape policy.Shape, q *policytest.Request) {
	q.Header = r.headers(n, shape, q.Header)
}

func readJWT(r *reader, n *policy.Node, shape policy.Shape, q *policytest.Request) {
	q.JWT = r.objects(n, shape, q.JWT)
}

func readMetadata(r *reader, n *policy.Node, shape policy.Shape, q *policytest.Request) {
	q.Metadata = r.objects(n, shape, q.Metadata)
}

func readProperties(r *reader, n *policy.Node, shape policy.Shape, q *policytest.Request) {
	set := maps.Clone(q.Properties)
	if set == nil {
		set = map[string]string{}
	}
	r.members(n, shape, func(name string, f *policy.Field) { set[name] = r.anyText(f.Value) })
	q.Properties = set
}

func readRequestBody(r *reader, n *policy.Node, _ policy.Shape, q *policytest.Request) {
	q.Body, q.BodyBytes = r.anyText(n), 0
}

func readBodyBytes(r *reader, n *policy.Node, shape policy.Shape, q *policytest.Request) {
	q.Body, q.BodyBytes = "", int(r.integer(n, shape))
}

// readRequest reads what is said of a request into what is known of it, such as a copy of the test's
// request. No reader changes a map of it, which the copy shares: it sets another one.
func readRequest(r *reader, n *policy.Node, q *policytest.Request) {
	if !readValid(r, n, requestObject, q) {
		return
	}
	if n.Member("body") != nil && n.Member("body_bytes") != nil {
		r.fail(n.Member("body_bytes"), "does not go with body: keep one of the two")
	}
	r.failMember(n, q.Check())
}

// failMember reports an error of policytest, if there is one, at the field that it is about.
func (r *reader) failMember(n *policy.Node, err error) {
	var wrong *policytest.FieldError
	switch {
	case err == nil:
	case errors.As(err, &wrong) && n.Member(wrong.Field) != nil:
		r.fail(n.Member(wrong.Field), wrong.Why)
	case wrong != nil: // of a field that n has from the file or the test
		r.fail(n, wrong.Why)
	default:
		r.fail(n, err.Error())
	}
}

// headers are those known before, and those of n.
func (r *reader) headers(n *policy.Node, shape policy.Shape, before http.Header) http.Header {
	h := before.Clone()
	if h == nil {
		h = http.Header{}
	}
	r.members(n, shape, func(name string, f *policy.Field) {
		if !policy.IsToken(name) {
			r.failField(n, f, "is not a header's name")
			return
		}
		h.Del(name)
		switch f.Value.Kind {
		case policy.String:
			h.Add(name, f.Value.Text)
		case policy.List:
			for _, item := range f.Value.Items {
				h.Add(name, r.anyText(item))
			}
		default:
			r.failAs(f.Value, policy.WrongValue, choiceShape("header_values"))
		}
	})
	return h
}

// objects are those known before, and those of n.
func (r *reader) objects(
	n *policy.Node, shape policy.Shape, before map[string]map[string]any,
) map[string]map[string]any {
	set := maps.Clone(before)
	if set == nil {
		set = map[string]map[string]any{}
	}
	r.members(n, shape, func(name string, f *policy.Field) {
		if f.Value.Kind != policy.Object {
			r.failAs(f.Value, policy.WrongValue, choiceShape("json_object"))
			return
		}
		values := map[string]any{}
		err := json.Unmarshal(policy.AppendJSON(nil, f.Value), &values)
		if err != nil {
			r.fail(f.Value, fmt.Sprintf("is not JSON: %v", err))
		}
		set[name] = values
	})
	return set
}

// answerOf is an answer, and to which running request.
type answerOf struct {
	*policytest.Answer
	to *string
}

var answerObject = &object[answerOf]{"test_answer", []field[answerOf]{
	{"to", nameShape, "Name of the running requests that are answered.", readTo},
	{"status", integerShape(100, 599), "Default 200.", readStatus},
	{"headers", headersShape, "A header's value, or a list of values.", readAnswerHeaders},
	{"json", choiceShape("json"), "The body as an object; it sets content-type: application/json.", readJSON},
	{"body", bodyShape, "The body as text, in place of json.", readAnswerBody},
	{"trailers", headersShape, "What follows the body.", readTrailers},
	{"took", durationShape, "Time until the answer.", readTook},
	{"no_answer", wordShape("client", "upstream", "timeout"), "Who ends the request before its answer does: the client, " +
		"the upstream, or the proxy's time-out. With a status or a body the answer breaks off behind them.", readNoAnswer},
}}

func readTo(r *reader, n *policy.Node, _ policy.Shape, a *answerOf) { *a.to, _ = r.text(n) }

func readStatus(r *reader, n *policy.Node, shape policy.Shape, a *answerOf) {
	a.Status = int(r.integer(n, shape))
}

func readAnswerHeaders(r *reader, n *policy.Node, shape policy.Shape, a *answerOf) {
	a.Header = r.headers(n, shape, nil)
}

func readJSON(_ *reader, n *policy.Node, _ policy.Shape, a *answerOf) {
	a.JSON = json.RawMessage(policy.AppendJSON(nil, n))
}

func readAnswerBody(r *reader, n *policy.Node, _ policy.Shape, a *answerOf) { a.Body = r.anyText(n) }

func readTrailers(r *reader, n *policy.Node, shape policy.Shape, a *answerOf) {
	a.Trailer = r.headers(n, shape, nil)
}

func readTook(r *reader, n *policy.Node, _ policy.Shape, a *answerOf) {
	a.Took = time.Duration(r.duration(n))
}

func readNoAnswer(r *reader, n *policy.Node, shape policy.Shape, a *answerOf) {
	a.Broken = policytest.Broken(r.word(n, shape))
}

// readAnswer reads an answer.
func readAnswer(r *reader, n *policy.Node, a *answerOf) {
	if readValid(r, n, answerObject, a) {
		r.failMember(n, a.Check())
	}
}
