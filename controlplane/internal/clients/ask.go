package clients

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
)

// Asker asks the proxies of a policy. It is a Server or a Proxy. If it returns an error, the whole call
// failed; the error of one proxy is in its row.
type Asker interface {
	// Counters does an operation on a counter: op.Query makes its query.
	Counters(ctx context.Context, op manage.Operation, query url.Values) (*api.Counters, error)
	// Explain explains a request, given as simulate.Request.Header writes it.
	Explain(ctx context.Context, request string) ([]manage.ExplainRow, error)
}

// ErrNoProxy says that there is no proxy to ask.
var ErrNoProxy = errors.New("no proxy of this policy is connected")

// Call is a POST request to the API of sluice serve, as Server gives it to its Post. The command line
// sends it over HTTP, and the console to the API of its own process. That API asks the proxies: a
// manage.Call there is all questions of one caller.
type Call struct {
	Path    string
	Query   url.Values
	Kind    string // the content type of Body
	Body    string
	Answer  any         // the JSON of the answer is read into it
	IsWhole func() bool // whether Answer, once read, has all that an answer of the API has
}

// Server asks through the API of sluice serve, which asks all proxies of one policy.
type Server struct {
	Policy  string        // empty: the default one
	Timeout time.Duration // for each proxy
	// Post makes the call and reads Answer. Its error, if any, is that of the question. A Post over
	// a network must ask IsWhole too, because another server may have answered; one that calls the
	// API of its own process need not.
	Post func(context.Context, *Call) error
}

// Counters implements Asker.
func (s *Server) Counters(ctx context.Context, op manage.Operation, query url.Values) (*api.Counters, error) {
	form := s.which()
	maps.Copy(form, query)
	report := &api.Counters{}
	err := s.Post(ctx, &Call{
		Path: "/v1/counters/" + op.Name, Kind: "application/x-www-form-urlencoded", Body: form.Encode(),
		Answer: report, IsWhole: func() bool { return isWhole(report, op) },
	})
	switch {
	case err != nil:
		return nil, err
	case len(report.Proxies) == 0 && report.Quota == nil:
		return nil, ErrNoProxy
	}
	return report, nil
}

// isWhole reports whether each answer has what the operation answers. If the quota service has
// done it, the proxies answer with what they have leased.
func isWhole(report *api.Counters, op manage.Operation) bool {
	ofProxies := op
	if report.Quota != nil {
		if !manage.Answers(op, report.Quota) {
			return false
		}
		ofProxies = manage.Leased
	}
	return !slices.ContainsFunc(report.Proxies, func(r manage.Row) bool {
		return r.Error == "" && !manage.Answers(ofProxies, &r.Result)
	})
}

// Explain implements Asker.
func (s *Server) Explain(ctx context.Context, request string) ([]manage.ExplainRow, error) {
	report := &api.Explanations{}
	err := s.Post(ctx, &Call{
		Path: "/v1/explain", Query: s.which(), Kind: "application/json", Body: request,
		Answer: report, IsWhole: func() bool {
			return !slices.ContainsFunc(report.Proxies, func(r manage.ExplainRow) bool {
				return r.Error == "" && !manage.Explains(&r.Explanation)
			})
		},
	})
	switch {
	case err != nil:
		return nil, err
	case len(report.Proxies) == 0:
		return nil, ErrNoProxy
	}
	return report.Proxies, nil
}

// which are the parameters that say which proxies are asked, and for how long.
func (s *Server) which() url.Values {
	query := url.Values{"timeout": {s.Timeout.String()}}
	if s.Policy != "" {
		query.Set("policy", s.Policy)
	}
	return query
}

// Proxy asks one proxy, past sluice serve. The counters of a rule of scope cluster are then out
// of reach: a proxy says only what it has leased of them.
type Proxy struct {
	Client *manage.Client
	URL    *url.URL // of its management path
}

func (p *Proxy) asked() manage.Asked { return manage.Asked{Proxy: p.URL.Host, URL: p.URL.String()} }

// Counters implements Asker.
func (p *Proxy) Counters(ctx context.Context, op manage.Operation, query url.Values) (*api.Counters, error) {
	done, err := p.Client.Counters(ctx, p.URL, op, query)
	if err != nil {
		return nil, err
	}
	report := api.NewCounters(op, []manage.Row{{Asked: p.asked(), Result: done}})
	report.Sum = nil // one proxy needs none
	return &report, nil
}

// Explain implements Asker.
func (p *Proxy) Explain(ctx context.Context, request string) ([]manage.ExplainRow, error) {
	x, err := p.Client.Explain(ctx, p.URL, request)
	if err != nil {
		return nil, err
	}
	return []manage.ExplainRow{{Asked: p.asked(), Explanation: x}}, nil
}
