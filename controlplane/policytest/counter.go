package policytest

import (
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Counter is a counter of one rule for one key.
type Counter struct {
	Rule   string
	Key    []string // its parts, none for a rule without a key
	Window string   // of Set: name or index of one window; empty: all
	Proxy  *int     // from 0, nil: the first; a rule of scope cluster has one counter for all
}

// Count is what a counter says.
type Count struct {
	Used      uint32        // of the only window; with several windows, see Windows
	Remaining uint32        // of the tightest window, without what running requests hold
	Unlimited bool          // no window has a limit for this key
	Held      uint32        // by running requests
	Leased    uint32        // of a rule of scope cluster: by proxies
	Blocked   time.Duration // what is left of the key's block; 0: it is not blocked
	Windows   []Window
}

// Count reads a counter, without changing it.
func (p *Proxies) Count(c Counter) Count {
	p.tb.Helper()
	o := p.operate(c, counters.Request{Name: "get"})
	count := Count{
		Windows: windowsOf(o.Result.Windows), Unlimited: true, Blocked: time.Duration(o.Result.BlockedNs),
	}
	if o.Result.Held != nil {
		count.Held = *o.Result.Held
	}
	if o.Leased != nil {
		count.Leased = uint32(*o.Leased)
	}
	for _, w := range count.Windows {
		if !w.Unlimited && (count.Unlimited || w.Remaining < count.Remaining) {
			count.Remaining, count.Unlimited = w.Remaining, false
		}
	}
	if len(count.Windows) == 1 {
		count.Used = count.Windows[0].Used
	}
	return count
}

// Set sets what is used of a counter.
func (p *Proxies) Set(c Counter, units uint32) {
	p.tb.Helper()
	p.operate(c, counters.Request{Name: "set", N: units, Window: c.Window})
}

// Reset empties a counter. What running requests hold stays.
func (p *Proxies) Reset(c Counter) {
	p.tb.Helper()
	p.operate(c, counters.Request{Name: "reset"})
}

func (p *Proxies) operate(c Counter, o counters.Request) *fleet.Outcome {
	p.tb.Helper()
	o.Rule, o.Key = c.Rule, c.Key
	first := 0 // the first of a proxy's workers, which is its only one here, and the first proxy
	at := fleet.At{Proxy: c.Proxy, Worker: &first}
	if at.Proxy == nil && !counters.IsOfCluster(p.fleet.Policy(), o) {
		at.Proxy = &first // named, so that it takes no request's turn
	}
	p.checkProxy(c.Proxy)
	outcome, err := p.fleet.Operate(at, o, nil)
	if err != nil {
		p.tb.Fatalf("%v", err)
	}
	return outcome
}

// Window is one window of a rule, as it stands for a key.
type Window struct {
	Name      string
	Unlimited bool // then there is no limit, and nothing remains of it
	Limit     uint32
	Used      uint32
	Remaining uint32
	Per       time.Duration
	Reset     time.Duration // until it ends, or has room for all
}

func windowsOf(windows []result.Window) (list []Window) {
	for i := range windows {
		w := &windows[i]
		window := Window{
			Name: w.Name, Unlimited: w.Unlimited || w.Limit == nil, Used: w.Used,
			Per: time.Duration(w.PerNs), Reset: time.Duration(w.ResetNs),
		}
		if w.Limit != nil {
			window.Limit = *w.Limit
		}
		if w.Remaining != nil {
			window.Remaining = *w.Remaining
		}
		list = append(list, window)
	}
	return list
}
