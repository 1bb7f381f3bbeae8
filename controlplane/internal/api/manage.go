package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

// Counters answers POST /v1/counters/{operation}. Of a rule of scope cluster the
// quota service has answered, and the values of the proxies are units that they
// have leased and not spent.
type Counters struct {
	Op      string          `json:"op"`
	Quota   *counted.Result `json:"quota,omitempty"`
	Proxies []manage.Row    `json:"proxies"`
	Failed  int             `json:"failed"`
	Sum     *int64          `json:"sum,omitempty"`      // of the values of all proxies; nil unless all answered
	AtLeast *int64          `json:"at_least,omitempty"` // what it is at least, where only some answered

	Denials []counted.Denials `json:"denials,omitempty"` // of top: of all proxies
	Note    string            `json:"note,omitempty"`
}

// Explanations answers POST /v1/explain.
type Explanations struct {
	Proxies []manage.ExplainRow `json:"proxies"`
}

const (
	// maxForm is room for keys as long as a request's header may be, escaped.
	maxForm = 256 << 10
	// described says what explain takes.
	described = "the description must be one line of at most %d bytes of JSON in ASCII"
)

var formFields = []string{"policy", "rule", "key", "n", "limit", "window", "timeout"}

// asked is what a caller asks of counters.
type asked struct {
	op      manage.Operation
	policy  string
	query   url.Values // as proxies get it
	timeout time.Duration
}

// counters handles POST /v1/counters/{operation}. Rule and key are a form in the
// body: keys do not belong in a URL, which ends up in logs.
func (s *server) counters(op manage.Operation) handler {
	return func(w http.ResponseWriter, r *request) error {
		a, err := r.readAsked(op)
		if err != nil {
			return err
		}
		prepared, err := s.ofCluster(r.Context(), a)
		if err != nil {
			return err
		}
		if prepared != nil {
			return s.clusterCounters(w, r, a, prepared)
		}
		return s.proxyCounters(w, r, a)
	}
}

// proxyCounters has every proxy do the operation on its own counters.
func (s *server) proxyCounters(w http.ResponseWriter, r *request, a asked) error {
	call, targets, err := s.call(r.Context(), a.policy, a.timeout)
	if err != nil {
		return err
	}
	defer call.End()
	setOutcome, err := s.record(r.Context(), a)
	if err != nil {
		return err
	}
	begin(w)
	rows := call.Counters(r.Context(), targets, a.op, a.query)
	setOutcome(outcome(rows))
	_ = json.NewEncoder(w).Encode(NewCounters(a.op, rows)) // the caller has gone if this fails
	return nil
}

// readAsked reads the form, and refuses a caller without the role for the operation.
func (r *request) readAsked(op manage.Operation) (a asked, err error) {
	form, timeout, err := r.countersForm()
	if err != nil {
		return a, err
	}
	a = asked{op: op, policy: cmp.Or(form.Get("policy"), store.DefaultPolicy), timeout: timeout}
	if err := needRole(r.Context(), a.policy, roleOf(op), r.Pattern); err != nil {
		return a, err
	}
	a.query, err = op.Query(manage.Subject{
		Rule: form.Get("rule"), Key: form["key"], N: form.Get("n"), Limits: form["limit"], Window: form.Get("window"),
	})
	if err != nil {
		return a, badRequest("%w", err)
	}
	return a, nil
}

// NewCounters sums up rows.
func NewCounters(op manage.Operation, rows []manage.Row) Counters {
	c := Counters{Op: op.Wire, Proxies: rows}
	var sum int64
	for _, r := range rows {
		if r.Error != "" {
			c.Failed++
		}
		if r.Value != nil {
			sum += *r.Value
		}
	}
	switch {
	case !op.Sums || c.Failed == len(rows):
	case c.Failed > 0:
		c.AtLeast = &sum
	default:
		c.Sum = &sum
	}
	if op.Name == "top" {
		c.Denials = manage.Denials(rows)
	}
	return c
}

// countersForm reads the body. The error never repeats a value.
func (r *request) countersForm() (form url.Values, timeout time.Duration, err error) {
	if r.URL.RawQuery != "" {
		return nil, 0, badRequest("the query is not read: give %s as a form in the body", strings.Join(formFields, ", "))
	}
	const urlencoded = "application/x-www-form-urlencoded"
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != urlencoded && len(r.body) > 0 {
		return nil, 0, badRequest("send the form as %s", urlencoded)
	}
	form, err = url.ParseQuery(string(r.body))
	if err != nil {
		return nil, 0, badRequest("the body is not a form: rule=NAME&key=PART&key=PART, escaped as in a URL")
	}
	for name, values := range form {
		switch {
		case !slices.Contains(formFields, name):
			return nil, 0, badRequest("unknown parameter %.40q: there are %s", name, strings.Join(formFields, ", "))
		case len(values) > 1 && name != "key" && name != "limit":
			return nil, 0, badRequest("%s is given twice", name)
		}
	}
	timeout, err = readTimeout(form.Get("timeout"))
	return form, timeout, err
}

func readTimeout(text string) (time.Duration, error) {
	timeout, err := time.ParseDuration(cmp.Or(text, manage.DefaultTimeout.String()))
	if err != nil {
		return 0, badRequest("timeout %.40q is not a duration such as 5s", text)
	}
	if err := manage.CheckTimeout(timeout); err != nil {
		return 0, badRequest("%w", err)
	}
	return timeout, nil
}

// explain handles POST /v1/explain?policy=NAME&timeout=5s with the described request, a JSON
// object, as body.
func (s *server) explain(w http.ResponseWriter, r *request) error {
	timeout, err := readTimeout(r.get("timeout"))
	if err != nil {
		return err
	}
	if bytes.ContainsFunc(r.body, func(c rune) bool { return c < ' ' || c > '~' }) {
		return badRequest(described, manage.MaxDescribed)
	}
	call, targets, err := s.call(r.Context(), r.policy(), timeout)
	if err != nil {
		return err
	}
	defer call.End()
	begin(w)
	_ = json.NewEncoder(w).Encode(Explanations{Proxies: call.Explain(r.Context(), targets, string(r.body))})
	return nil
}

// begin sends the header before the proxies' answers, which may take a while.
func begin(w http.ResponseWriter) {
	_ = setWriteDeadline(w, manage.MaxCall+time.Minute) // without it, the caller may get no answer
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).Flush()
}
