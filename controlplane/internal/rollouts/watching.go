package rollouts

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/canary"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// watching is what this serve has seen of one canary.
type watching struct {
	canary.Sight
	revision uint64
	since    time.Time
	alone    bool   // no other proxy tells what it denies
	waits    string // why it is not promoted yet
}

// take adds what proxies have said.
func (w *watching) take(rows []manage.Row, err error, c *xds.Canary, now time.Time) {
	others := 0
	silent := map[bool]string{false: "there is no other proxy to compare with"} // by whether it is in the canary
	for _, r := range rows {
		in := r.Revision == w.revision
		switch {
		case r.Error != "":
			silent[in] = r.Proxy + " does not tell what it denies: " + r.Error
			if r.Hint != "" {
				silent[in] += "; " + r.Hint
			}
			continue
		case in && r.VMStarts == 0:
			silent[in] = r.Proxy + " does not tell whether its filter has crashed: that is too old"
		case !in:
			others++
		}
		n := canary.Sample{Revision: r.Revision, InCanary: in, VMStarts: r.VMStarts, Rules: map[string]canary.Count{}}
		for _, rule := range r.Stats {
			allowed, denied := rule.Metrics["allowed"], rule.Metrics["denied"]
			n.Rules[rule.Rule] = canary.Count{Requests: allowed + denied, Denied: denied}
		}
		w.Add(canary.Process{Node: r.Proxy, URL: r.URL}, now, n)
	}
	w.alone, w.waits = others == 0, silent[true]
	switch {
	case err != nil:
		w.waits = err.Error()
	case c.Connected == 0:
		w.waits = "no proxy of it is connected"
	case c.Runs < c.Connected:
		w.waits = fmt.Sprintf("%d of its %d proxies run it", c.Runs, c.Connected)
	case len(c.Gone) > 0:
		w.waits = c.Gone[0] + " ran it and is gone"
	case w.waits == "" && w.alone:
		w.waits = silent[false]
	}
}

// next says how the canary is to stand, and why.
func (w *watching) next(c *xds.Canary, now time.Time) (store.RolloutState, string) {
	bad, missing := w.Judge(c.MaxDenied)
	if w.alone {
		bad = ""
	}
	switch why := cmp.Or(w.waits, missing); {
	case bad != "" && c.AbortDenied:
		return store.Aborted, bad
	case c.State == store.Stalled:
		return store.Stalled, c.Why
	case len(c.Refused) > 0:
		return store.Stalled, "refused by " + strings.Join(c.Refused, ", ")
	case c.Nacked:
		return store.Stalled, "refused by a proxy that has accepted it since, or is gone"
	case w.Ended != (canary.Process{}):
		return store.Stalled, "the filter of " + w.Ended.Node + " has crashed, or the proxy was restarted"
	case bad != "":
		return store.Stalled, bad
	case c.PromoteAfter == 0 || now.Before(w.since.Add(c.PromoteAfter)) || why != "":
		return store.Canary, why
	}
	return store.Promoted, "by itself after " + c.PromoteAfter.String()
}

// says is what the canary waits for, in words.
func (w *watching) says(c *xds.Canary, now time.Time) string {
	state, why := w.next(c, now)
	at := w.since.Add(c.PromoteAfter)
	when := "will be promoted at " + at.UTC().Format(time.TimeOnly+"Z")
	switch {
	case state == store.Stalled:
		return "stalled, waits for promote or abort: " + why
	case state == store.Aborted:
		return "will be aborted: " + why
	case state == store.Promoted, c.PromoteAfter > 0 && why == "":
		return when + " unless it stalls"
	case c.PromoteAfter > 0 && now.Before(at):
		return when + " or later, waits: " + why
	case c.PromoteAfter > 0:
		return "waits: " + why
	case why != "":
		return "waits for promote or abort; " + why
	}
	return "waits for promote or abort"
}
