package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/clients"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/describe"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	// askTimeout is how long a proxy may take to answer one question of a page.
	askTimeout = 2 * time.Second
	// findTimeout ends a search in time for its page to be sent.
	findTimeout = 40 * time.Second
)

// clientsView is the search for a client, and what it found.
type clientsView struct {
	policies
	Asked   describe.Client
	Problem string // why nothing was found
	At      time.Time
	Report  *clients.Report
	Freed   *clients.Freed
	MayFree bool
}

// More reports whether the description has a part that the form shows only on demand.
func (b *clientsView) More() bool {
	d := &b.Asked
	return d.Method != "" || d.Host != "" || d.Path != "" || len(d.Cookies)+len(d.Query) > 0
}

// Others are the rules in which the client has no key.
func (b *clientsView) Others() []*clients.Key {
	return slices.DeleteFunc(slices.Clone(b.Report.Rules), func(k *clients.Key) bool { return k.NoKey == "" })
}

// Own are the keys of the client: first those that are denied, last those that others share.
func (b *clientsView) Own() []*clients.Key {
	own := slices.DeleteFunc(slices.Clone(b.Report.Rules), func(k *clients.Key) bool { return k.NoKey != "" })
	rank := func(k *clients.Key) int {
		switch {
		case k.Denies():
			return 0
		case !k.Common:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(own, func(x, y *clients.Key) int { return rank(x) - rank(y) })
	return own
}

// Until is when a window ends, if something of it is used, and else the zero time.
func (b *clientsView) Until(w result.Window) time.Time {
	if w.Used == 0 || w.ResetMs <= 0 {
		return time.Time{}
	}
	return b.At.Add(time.Duration(w.ResetMs) * time.Millisecond)
}

// newClientsView is the page of a visitor before a search.
func (c *console) newClientsView(r *http.Request, v *visit) (*clientsView, error) {
	p, err := c.policies(r, "/console/clients")
	if err != nil {
		return nil, err
	}
	return &clientsView{
		policies: p, Asked: describe.FromForm(r.PostForm), MayFree: v.May(access.Admin, p.Policy),
	}, nil
}

func (c *console) clientsPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	b, err := c.newClientsView(r, v)
	if err != nil {
		return err
	}
	return c.showClients(w, v, b)
}

func (c *console) showClients(w http.ResponseWriter, v *visit, b *clientsView) error {
	return c.render(w, http.StatusOK, "clients", view{Title: "Clients", Here: "clients", Visit: v, Body: b})
}

// findClient is a POST although it changes nothing: keys do not belong in a URL, because URLs end
// up in logs.
func (c *console) findClient(w http.ResponseWriter, r *http.Request, v *visit) error {
	b, err := c.newClientsView(r, v)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), findTimeout)
	defer cancel()
	request, err := b.request()
	if err == nil {
		err = c.find(ctx, r, b, request)
	}
	if err := b.explain(ctx, err); err != nil {
		return err
	}
	return c.showClients(w, v, b)
}

// freeClient resets the client's keys, in one rule or in all, and finds the client again.
func (c *console) freeClient(w http.ResponseWriter, r *http.Request, v *visit) error {
	b, err := c.newClientsView(r, v)
	if err != nil {
		return err
	}
	r = r.WithContext(context.WithoutCancel(r.Context())) // it is done even if the visitor leaves
	ctx, cancel := context.WithTimeout(r.Context(), findTimeout)
	defer cancel()
	request, err := b.request()
	if err == nil {
		err = c.free(ctx, r, b, request)
	}
	if err == nil {
		err = c.find(ctx, r, b, request)
	}
	if err := b.explain(ctx, err); err != nil {
		return err
	}
	return c.showClients(w, v, b)
}

func (c *console) find(ctx context.Context, r *http.Request, b *clientsView, request *simulate.Request) (err error) {
	b.At = time.Now()
	b.Report, err = clients.Find(ctx, c.asker(r), request)
	return err
}

func (c *console) free(ctx context.Context, r *http.Request, b *clientsView, request *simulate.Request) (err error) {
	if rule := r.PostForm.Get("rule"); rule != "" {
		b.Freed, err = clients.FreeIn(ctx, c.asker(r), request, rule)
	} else {
		b.Freed, err = clients.Free(ctx, c.asker(r), request)
	}
	return err
}

// explain has the page say why a search found nothing. It returns an error that is no reason for that.
func (b *clientsView) explain(ctx context.Context, err error) error {
	var problem *describe.Error
	var noKey *clients.NoKeyError
	switch {
	case err == nil:
	case errors.As(err, &problem):
		b.Problem = problemText(problem)
	case errors.As(err, &noKey), errors.Is(err, clients.ErrNoProxy),
		isCode(err, http.StatusNotImplemented), isCode(err, http.StatusServiceUnavailable):
		b.Problem = err.Error() + "."
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		b.Problem = "The proxies took longer than " + findTimeout.String() + ": use sluice counters find, which waits longer."
	default:
		return err
	}
	return nil
}

// request is the request that the form describes.
func (b *clientsView) request() (*simulate.Request, error) {
	if b.Asked.IsZero() {
		return nil, &describe.Error{
			Text: "Describe one of the client's requests: its address, or a header that it sends",
		}
	}
	return b.Asked.RequestForProxy()
}

func problemText(e *describe.Error) string {
	if e.Example == "" {
		return e.Error() + "."
	}
	return e.Error() + ": give something like " + e.Example + "."
}

// asker asks the API for the visitor.
func (c *console) asker(r *http.Request) clients.Asker {
	post := func(ctx context.Context, call *clients.Call) error {
		target := call.Path
		if len(call.Query) > 0 {
			target += "?" + call.Query.Encode()
		}
		return c.call(r.WithContext(ctx), http.MethodPost, target, body{call.Kind, call.Body}, call.Answer)
	}
	return &clients.Server{Policy: policyOf(r), Timeout: askTimeout, Post: post}
}
