package manage

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	// maxAsked is how many proxies are asked at the same time, by all callers.
	maxAsked = 32
	// maxCalls is how many calls are served at the same time.
	maxCalls = 4
	// maxKept is what the large answers of one call may take together.
	maxKept = 16 << 20
	// MaxCall is how long a call may take. Proxies that were not asked by then are
	// not asked.
	MaxCall = 5 * time.Minute
)

// ErrBusy says that as many calls as there may be are being served.
var ErrBusy = fmt.Errorf("all proxies are being asked already: %d times at once is the most", maxCalls)

// Row is a proxy and its answer to an operation, or what went wrong.
type Row struct {
	Asked
	result.Result
}

// ExplainRow is a proxy and its explanation, or what went wrong.
type ExplainRow struct {
	Asked
	result.Explanation
}

// Asked is a proxy that was asked or should have been.
type Asked struct {
	Proxy    string `json:"proxy"`
	Revision uint64 `json:"revision,omitempty"` // that it runs, as far as serve knows
	URL      string `json:"url,omitempty"`
	Error    string `json:"error,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

func (a *Asked) fail(err error) {
	a.Error = err.Error()
	var f *Failure
	if errors.As(err, &f) {
		a.Hint = f.Hint
	}
}

// Fleet asks many proxies, within bounds that hold for all callers together.
type Fleet struct {
	rules       Rules
	credentials func() Credentials
	asked       chan struct{}
	calls       chan struct{}
	large       chan struct{}
}

// Credentials are for requests to proxies.
type Credentials struct {
	Token string
	TLS   *tls.Config // nil: the system's roots
}

// NewFleet returns a fleet. It gets the credentials anew for every call.
func NewFleet(rules Rules, credentials func() Credentials) *Fleet {
	return &Fleet{
		rules: rules, credentials: credentials, asked: make(chan struct{}, maxAsked), calls: make(chan struct{}, maxCalls),
		large: make(chan struct{}, 1),
	}
}

// Begin starts a call, or fails with ErrBusy. The caller ends it when it is done
// with the answers.
func (f *Fleet) Begin(timeout time.Duration) (*Call, error) {
	select {
	case f.calls <- struct{}{}:
	default:
		return nil, ErrBusy
	}
	c := &Call{fleet: f, owners: map[netip.AddrPort]string{}}
	with := f.credentials()
	c.client = Client{Token: with.Token, TLS: with.TLS, Rules: f.rules, Timeout: timeout, large: f.large, keep: c.keep}
	return c, nil
}

// Call asks all proxies for one caller.
type Call struct {
	fleet  *Fleet
	client Client

	mu     sync.Mutex
	kept   int                       // bytes of large answers
	owners map[netip.AddrPort]string // nodes by the address that was dialed for them
}

// End ends the call.
func (c *Call) End() { <-c.fleet.calls }

// Counters has every proxy do the operation and returns a row for each.
func (c *Call) Counters(ctx context.Context, targets []Target, op Operation, query url.Values) []Row {
	rows := make([]Row, len(targets))
	c.each(ctx, targets, func(i int) *Asked { return &rows[i].Asked }, func(ctx context.Context, i int, client *Client) (err error) {
		rows[i].Result, err = client.Counters(ctx, targets[i].URL, op, query)
		return err
	})
	return rows
}

// Explain has every proxy explain the described request.
func (c *Call) Explain(ctx context.Context, targets []Target, described string) []ExplainRow {
	rows := make([]ExplainRow, len(targets))
	c.each(ctx, targets, func(i int) *Asked { return &rows[i].Asked }, func(ctx context.Context, i int, client *Client) (err error) {
		rows[i].Explanation, err = client.Explain(ctx, targets[i].URL, described)
		return err
	})
	return rows
}

// each has do ask every target, some at a time, and notes whom and what went wrong. It
// returns when all have been asked.
func (c *Call) each(ctx context.Context, targets []Target, asked func(int) *Asked, do func(context.Context, int, *Client) error) {
	limited, cancel := context.WithTimeoutCause(ctx, MaxCall, &Failure{
		"not asked: the others took " + MaxCall.String(), "--timeout says how long each may take",
	})
	defer cancel()
	one := func(i int, err error) {
		t, a := &targets[i], asked(i)
		a.Proxy, a.Revision = t.Node, t.Revision
		if t.URL != nil {
			a.URL = t.URL.String()
		}
		if err == nil {
			err = do(limited, i, c.of(t))
		}
		if err != nil {
			a.fail(err)
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	for i, t := range targets {
		if t.Err != nil {
			one(i, t.Err)
			continue
		}
		select {
		case c.fleet.asked <- struct{}{}:
			all.Go(func() {
				defer func() { <-c.fleet.asked }()
				one(i, context.Cause(limited))
			})
		case <-limited.Done():
			one(i, context.Cause(limited))
		}
	}
}

// of returns the client for one target. It refuses to dial an address that has
// been dialed for another: two names may be one listener.
func (c *Call) of(t *Target) *Client {
	client := c.client
	client.claim = func(at netip.AddrPort) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if owner, taken := c.owners[at]; taken && owner != t.Node {
			return alsoThatOf(t.URL.Host, owner)
		}
		c.owners[at] = t.Node
		return nil
	}
	return &client
}

// keep takes the room for an answer, or fails. A small one needs none, so that no
// proxy takes the room of another.
func (c *Call) keep(answer any) error {
	text, err := json.Marshal(answer)
	if err != nil || len(text) <= smallAnswer {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept+len(text) > maxKept {
		return &Failure{
			fmt.Sprintf("left out: the proxies' answers are more than %d MiB", maxKept>>20),
			"ask for one rule, or ask a proxy by itself with --proxy",
		}
	}
	c.kept += len(text)
	return nil
}
