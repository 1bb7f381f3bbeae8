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
	// maxAsked is how many proxies are asked at the same time, for all callers together.
	maxAsked = 32
	// maxCalls is how many calls are served at the same time.
	maxCalls = 4
	// maxKept is what the large answers of one call may take together.
	maxKept = 16 << 20
	// MaxCall is how long a call may take. Proxies whose turn has not come by then are not asked.
	MaxCall = 5 * time.Minute
)

// ErrBusy says that too many calls are being served.
var ErrBusy = fmt.Errorf("too many calls ask all proxies now: at most %d at a time", maxCalls)

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

// Asked is a proxy that was to be asked, and what went wrong.
type Asked struct {
	Proxy    string `json:"proxy"`
	Revision uint64 `json:"revision,omitempty"` // that it runs, as far as serve knows
	URL      string `json:"url,omitempty"`
	Error    string `json:"error,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

// Credentials are for requests to proxies.
type Credentials struct {
	Token string
	TLS   *tls.Config // nil: the system's roots
}

// Fleet asks many proxies, within bounds that hold for all callers together.
type Fleet struct {
	reach       Reach
	credentials func() Credentials
	calls       chan struct{} // a place for each call that is served
	asked       chan struct{} // a place for each proxy that is being asked
	large       chan struct{} // the place for a large answer that is being read
}

// NewFleet returns a fleet. It gets the credentials anew for every call.
func NewFleet(reach Reach, credentials func() Credentials) *Fleet {
	return &Fleet{
		reach: reach, credentials: credentials,
		calls: make(chan struct{}, maxCalls), asked: make(chan struct{}, maxAsked), large: make(chan struct{}, 1),
	}
}

// Call asks all proxies for one caller.
type Call struct {
	fleet  *Fleet
	client Client // for all targets, without bounds

	mu    sync.Mutex
	kept  int                       // bytes of large answers
	nodes map[netip.AddrPort]string // for which each address was dialed
}

// Ask begins a call of the connected proxies that a policy is for, and returns where to ask each.
type Ask func(ctx context.Context, policy string, timeout time.Duration) (*Call, []Target, error)

// Begin starts a call, or fails with ErrBusy. The caller ends it when it no longer needs the
// answers.
func (f *Fleet) Begin(timeout time.Duration) (*Call, error) {
	select {
	case f.calls <- struct{}{}:
	default:
		return nil, ErrBusy
	}
	with := f.credentials()
	return &Call{
		fleet: f, nodes: map[netip.AddrPort]string{},
		client: Client{Token: with.Token, TLS: with.TLS, Reach: f.reach, Timeout: timeout},
	}, nil
}

// End ends the call.
func (c *Call) End() { <-c.fleet.calls }

// Counters has every proxy do the operation and returns a row for each.
func (c *Call) Counters(ctx context.Context, targets []Target, op Operation, query url.Values) []Row {
	rows := make([]Row, len(targets))
	c.each(ctx, targets, func(ctx context.Context, i int, client *Client) (err error) {
		rows[i].Result, err = client.Counters(ctx, targets[i].URL, op, query)
		return err
	}, func(i int, a Asked) { rows[i].Asked = a })
	return rows
}

// Explain has every proxy explain the described request and returns a row for each.
func (c *Call) Explain(ctx context.Context, targets []Target, described string) []ExplainRow {
	rows := make([]ExplainRow, len(targets))
	c.each(ctx, targets, func(ctx context.Context, i int, client *Client) (err error) {
		rows[i].Explanation, err = client.Explain(ctx, targets[i].URL, described)
		return err
	}, func(i int, a Asked) { rows[i].Asked = a })
	return rows
}

// each has do ask every target, some at the same time, and gives record each that was asked or
// could not be. It returns when all have been.
func (c *Call) each(
	ctx context.Context, targets []Target, do func(context.Context, int, *Client) error, record func(int, Asked),
) {
	limited, cancel := context.WithTimeoutCause(ctx, MaxCall, &Failure{
		"not asked: the others took " + MaxCall.String(), "--timeout says how long each may take",
	})
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range targets {
		t := &targets[i]
		if t.Err != nil {
			record(i, t.outcome(t.Err))
			continue
		}
		select {
		case c.fleet.asked <- struct{}{}:
			all.Go(func() {
				defer func() { <-c.fleet.asked }()
				err := context.Cause(limited)
				if err == nil {
					err = do(limited, i, c.of(t))
				}
				record(i, t.outcome(err))
			})
		case <-limited.Done():
			record(i, t.outcome(context.Cause(limited)))
		}
	}
}

// outcome is the target with what went wrong, if anything did.
func (t *Target) outcome(err error) Asked {
	a := Asked{Proxy: t.Node, Revision: t.Revision}
	if t.URL != nil {
		a.URL = t.URL.String()
	}
	if err != nil {
		a.Error = err.Error()
	}
	var f *Failure
	if errors.As(err, &f) {
		a.Hint = f.Hint
	}
	return a
}

// of is the client for one target.
func (c *Call) of(t *Target) *Client {
	client := c.client
	client.bounds = &bounds{c, t}
	return &client
}

// bounds are what a call holds the client of one target to. A client without a call has none: nil.
type bounds struct {
	call   *Call
	target *Target
}

// claim fails if the address was dialed for another target: two names may be one listener.
func (b *bounds) claim(at netip.AddrPort) error {
	if b == nil {
		return nil
	}
	b.call.mu.Lock()
	defer b.call.mu.Unlock()
	if node, ok := b.call.nodes[at]; ok && node != b.target.Node {
		return alsoThatOf(b.target.URL.Host, node)
	}
	b.call.nodes[at] = b.target.Node
	return nil
}

// waitForLarge lets one large answer of all calls be read at a time, until done.
func (b *bounds) waitForLarge(ctx context.Context) (done func(), err error) {
	if b == nil {
		return func() {}, nil
	}
	select {
	case b.call.fleet.large <- struct{}{}:
		return func() { <-b.call.fleet.large }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keep takes room for a large answer. A small one needs none, so that no proxy takes the room of
// another.
func (b *bounds) keep(answer any) error {
	if b == nil {
		return nil
	}
	text, err := json.Marshal(answer)
	if err != nil || len(text) <= smallAnswer {
		return err
	}
	b.call.mu.Lock()
	defer b.call.mu.Unlock()
	if b.call.kept+len(text) > maxKept {
		return &Failure{
			fmt.Sprintf("left out: the proxies' answers take more than %d MiB", maxKept>>20),
			"ask for one rule, or ask one proxy with --proxy",
		}
	}
	b.call.kept += len(text)
	return nil
}
