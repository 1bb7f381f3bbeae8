package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/find"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	// askTimeout is how long a proxy may take to answer one question of a page.
	askTimeout = "2s"
	// findTimeout ends a search in time for its page to be sent.
	findTimeout = 40 * time.Second
)

// clientsView is the search for a client, and what it found.
type clientsView struct {
	policies
	Asked   find.Description
	Problem string // what is wrong with the description
	At      time.Time
	Report  *find.Report
	Freed   *find.Freed
	MayFree bool
}

// Fields are those of a form that asks for the same client again.
func (b *clientsView) Fields() url.Values {
	d := &b.Asked
	fields := url.Values{
		"client_ip": {d.ClientIP}, "method": {d.Method}, "host": {d.Host}, "path": {d.Path},
		"header": d.Headers, "cookie": d.Cookies, "query": d.Query,
	}
	maps.DeleteFunc(fields, func(_ string, values []string) bool { return len(values) == 0 || values[0] == "" })
	return fields
}

// More reports whether the description has what the form shows only on demand.
func (b *clientsView) More() bool {
	d := &b.Asked
	return d.Method != "" || d.Host != "" || d.Path != "" || len(d.Cookies)+len(d.Query) > 0
}

// Others are the rules in which the client has no key.
func (b *clientsView) Others() []*find.Key {
	return slices.DeleteFunc(slices.Clone(b.Report.Rules), func(k *find.Key) bool { return k.NoKey == "" })
}

// Own are the keys of the client: first those that are denied, last those that others share.
func (b *clientsView) Own() []*find.Key {
	own := slices.DeleteFunc(slices.Clone(b.Report.Rules), func(k *find.Key) bool { return k.NoKey != "" })
	rank := func(k *find.Key) int {
		switch {
		case k.Denies():
			return 0
		case !k.Common:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(own, func(x, y *find.Key) int { return rank(x) - rank(y) })
	return own
}

// Until is when a window ends of which something is used, the zero time for no other.
func (b *clientsView) Until(w result.Window) time.Time {
	if w.Used == 0 || w.ResetMs <= 0 {
		return time.Time{}
	}
	return b.At.Add(time.Duration(w.ResetMs) * time.Millisecond)
}

// described reads a form. A list has a field each, or a line each.
func described(form url.Values) find.Description {
	one := func(name string) string { return strings.TrimSpace(form.Get(name)) }
	list := func(name string) (values []string) {
		for line := range strings.Lines(strings.Join(form[name], "\n")) {
			if value := strings.TrimSpace(line); value != "" {
				values = append(values, value)
			}
		}
		return values
	}
	return find.Description{
		ClientIP: one("client_ip"), Method: one("method"), Host: one("host"), Path: one("path"),
		Headers: list("header"), Cookies: list("cookie"), Query: list("query"),
	}
}

// asked is the request that a form describes, or what is wrong with it in words.
func asked(d *find.Description) (r *simulate.Request, problem string) {
	if d.IsZero() {
		return nil, "Describe one of the client's requests: its address, or a header that it sends."
	}
	r, err := d.Request()
	var malformed *find.MalformedError
	if errors.As(err, &malformed) {
		return nil, fmt.Sprintf("%s: give something like %s.", err, malformed.Example)
	}
	if err == nil {
		err = r.Check()
	}
	if err == nil {
		err = find.CheckLength(r)
	}
	if err != nil {
		return nil, err.Error() + "."
	}
	return r, ""
}

// asker asks the API for the visitor.
type asker struct {
	c *console
	r *http.Request
}

// Counters implements find.Asker.
func (a asker) Counters(ctx context.Context, op manage.Operation, query url.Values) (*api.Counters, error) {
	form := maps.Clone(query)
	form.Set("policy", policyOf(a.r))
	form.Set("timeout", askTimeout)
	report := new(api.Counters)
	return report, a.c.call(a.r.WithContext(ctx), http.MethodPost, "/v1/counters/"+op.Name, formBody(form), report)
}

// Explain implements find.Asker.
func (a asker) Explain(ctx context.Context, described string) ([]manage.ExplainRow, error) {
	var report api.Explanations
	target := "/v1/explain" + policyQuery(policyOf(a.r)) + "&timeout=" + askTimeout
	err := a.c.call(a.r.WithContext(ctx), http.MethodPost, target, body{"application/json", described}, &report)
	if err == nil && len(report.Proxies) == 0 {
		err = &failure{code: http.StatusServiceUnavailable, Text: "no proxy of this policy is connected"}
	}
	return report.Proxies, err
}

// newClientsView is the page of a visitor before a search.
func (c *console) newClientsView(r *http.Request, v *visit) (*clientsView, error) {
	var h api.History
	if err := c.get(r, "/v1/policies"+policyQuery(policyOf(r))+"&limit=1", &h); err != nil {
		return nil, err
	}
	b := &clientsView{policies: policies{"/console/clients", policyOf(r), h.Policies}}
	if b.Policy != store.DefaultPolicy && !slices.Contains(h.Policies, b.Policy) {
		return nil, errUnknown
	}
	b.Asked = described(r.PostForm)
	b.MayFree = v.May(access.Admin, b.Policy)
	return b, nil
}

func (c *console) clientsPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	b, err := c.newClientsView(r, v)
	if err != nil {
		return err
	}
	return c.render(w, http.StatusOK, "clients", view{"Clients", "clients", v, b})
}

// findClient is a POST although it changes nothing: keys do not belong in a URL, which ends
// up in logs.
func (c *console) findClient(w http.ResponseWriter, r *http.Request, v *visit) error {
	return c.search(w, r, v, func(context.Context, *clientsView, *simulate.Request) error { return nil })
}

// freeClient resets the client's keys, in one rule or in all, and finds it again.
func (c *console) freeClient(w http.ResponseWriter, r *http.Request, v *visit) error {
	whole := r.WithContext(context.WithoutCancel(r.Context())) // although the visitor may go
	return c.search(w, whole, v, func(ctx context.Context, b *clientsView, request *simulate.Request) (err error) {
		b.Freed, err = find.Free(ctx, asker{c, whole}, request, r.PostForm.Get("rule"))
		return err
	})
}

func (c *console) search(
	w http.ResponseWriter, r *http.Request, v *visit, first func(context.Context, *clientsView, *simulate.Request) error,
) error {
	b, err := c.newClientsView(r, v)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), findTimeout)
	defer cancel()
	request, problem := asked(&b.Asked)
	if problem == "" {
		err = first(ctx, b, request)
		if err == nil {
			b.At = time.Now()
			b.Report, err = find.Client(ctx, asker{c, r}, request)
		}
		var noKey *find.NoKeyError
		switch {
		case errors.As(err, &noKey), isCode(err, http.StatusNotImplemented), isCode(err, http.StatusServiceUnavailable):
			problem = err.Error() + "."
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			problem = "The proxies took longer than " + findTimeout.String() + ": sluice counters find waits for them."
		case err != nil:
			return err
		}
	}
	b.Problem = problem
	return c.render(w, http.StatusOK, "clients", view{"Clients", "clients", v, b})
}
