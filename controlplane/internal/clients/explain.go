package clients

import (
	"cmp"
	"context"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Explain has the proxies explain the request. Where a proxy would ask the quota service about a
// key, because it has leased no units of it, the service is asked here. NotKnown are the keys
// that the service did not answer for.
func Explain(
	ctx context.Context, a Asker, r *simulate.Request,
) (rows []manage.ExplainRow, notKnown []*Key, err error) {
	rows, err = a.Explain(ctx, r.Header())
	if err != nil {
		return nil, nil, err
	}
	_, isProxy := a.(*Proxy)
	isPending := func(row manage.ExplainRow) bool { return row.Pending }
	if isProxy || !slices.ContainsFunc(rows, isPending) {
		return rows, nil, nil
	}
	keys, _, err := Keys(ctx, a, r)
	if err != nil {
		return nil, nil, err
	}
	for _, k := range keys {
		if !slices.ContainsFunc(rows, k.isPendingAt) {
			continue
		}
		if err := k.readCounters(ctx, a); err != nil {
			return nil, nil, err
		}
		if k.Error != "" {
			notKnown = append(notKnown, k)
			continue
		}
		k.complete(rows)
	}
	for i := range rows {
		decidePending(&rows[i].Explanation)
	}
	return rows, notKnown, nil
}

// isPendingAt reports whether the proxy would ask the quota service about this key.
func (k *Key) isPendingAt(row manage.ExplainRow) bool {
	_, ok := k.hashes[row.Proxy]
	return ok && slices.ContainsFunc(row.Rules, k.isPendingIn)
}

func (k *Key) isPendingIn(r result.ExplainedRule) bool { return r.Rule == k.Rule && r.Pending }

// complete puts what the quota service says of the key into the rows that wait for it. If a
// request says the limit and the described one does not, that is not known.
func (k *Key) complete(rows []manage.ExplainRow) {
	at := slices.IndexFunc(k.Counters, func(c Counter) bool {
		return c.Proxy == QuotaService && len(c.result.Rules) > 0
	})
	if at < 0 {
		return
	}
	counter := &k.Counters[at]
	isSaid := func(w result.Window) bool { return w.LimitFrom != "" }
	if k.limits == nil && slices.ContainsFunc(counter.Windows, isSaid) {
		return
	}
	for i := range rows {
		if k.isPendingAt(rows[i]) {
			k.completeRow(&rows[i], counter)
		}
	}
}

func (k *Key) completeRow(row *manage.ExplainRow, counter *Counter) {
	decided := &counter.result.Rules[0]
	r := &row.Rules[slices.IndexFunc(row.Rules, func(r result.ExplainedRule) bool { return r.Rule == k.Rule })]
	r.Pending = false
	r.Allowed = &decided.Allowed
	r.Reason = decided.Reason
	r.Windows, r.BlockedMs = decided.Windows, decided.BlockedMs
	if decided.Allowed || r.Mode != "enforced" {
		return
	}
	row.DeniedBy = cmp.Or(row.DeniedBy, r.Rule)
	row.RetryMs = longerWait(row.RetryMs, counter.RetryMs)
}

// longerWait is the longer of two waits, in milliseconds. A negative one never ends, and nil is
// not known.
func longerWait(x, y *int64) *int64 {
	switch {
	case x == nil:
		return y
	case y == nil || *x < 0:
		return x
	case *y < 0 || *y > *x:
		return y
	}
	return x
}

// decidePending decides the request, if an enforced rule denies it or no enforced rule still
// has to ask. What the description leaves open could deny it too: then a request that nothing
// denies stays undecided, and of a denied one the wait is not known.
func decidePending(x *result.Explanation) {
	if !x.Pending {
		return
	}
	stillAsks := slices.ContainsFunc(x.Rules, func(r result.ExplainedRule) bool {
		return r.Pending && r.Mode == "enforced"
	})
	isOpen := len(x.DependsOn) > 0
	isDenied := x.DeniedBy != ""
	if !isDenied && (isOpen || stillAsks) {
		return
	}
	allowed := !isDenied
	x.Pending = false
	x.Allowed = &allowed
	if isOpen {
		x.RetryMs = nil
	}
}
