package find

import (
	"cmp"
	"context"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// AskQuotaService adds to explanations what the quota service says of keys that proxies would
// ask it about: one without units of a key does not know how it stands. It returns the keys
// of which the service did not say it.
func AskQuotaService(
	ctx context.Context, a Asker, r *simulate.Request, rows []manage.ExplainRow,
) (silent []*Key, err error) {
	keys, _, err := Keys(ctx, a, r)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if !slices.ContainsFunc(rows, k.isPendingAt) {
			continue
		}
		if err := k.read(ctx, a); err != nil {
			return nil, err
		}
		if k.Error != "" {
			silent = append(silent, k)
			continue
		}
		for i := range rows {
			if k.isPendingAt(rows[i]) {
				k.answer(&rows[i])
			}
		}
	}
	for i := range rows {
		judgePending(&rows[i].Explanation)
	}
	return silent, nil
}

// isPendingAt reports whether the proxy would ask the quota service about this key.
func (k *Key) isPendingAt(row manage.ExplainRow) bool {
	_, has := k.hashes[row.Proxy]
	isPending := func(r answer.ExplainedRule) bool { return r.Rule == k.Rule && r.Pending }
	return has && slices.ContainsFunc(row.Rules, isPending)
}

// answer makes the quota service's word that of the row's rule, unless only the request itself
// says the limit.
func (k *Key) answer(row *manage.ExplainRow) {
	isQuota := func(c Counter) bool { return c.Proxy == QuotaService }
	isSaid := func(w answer.Window) bool { return w.LimitFrom != "" }
	said := slices.IndexFunc(k.Counters, isQuota)
	if said < 0 || k.limits == nil && slices.ContainsFunc(k.Counters[said].Windows, isSaid) {
		return
	}
	c := &k.Counters[said]
	r := &row.Rules[slices.IndexFunc(row.Rules, func(r answer.ExplainedRule) bool { return r.Rule == k.Rule })]
	r.Pending = false
	r.Allowed, r.Reason = c.Allowed, c.Reason
	r.Windows = c.Windows
	if !*c.Allowed && r.Mode == "enforced" {
		row.DeniedBy = cmp.Or(row.DeniedBy, r.Rule)
		if row.RetryMs == nil || *c.RetryMs < 0 || *row.RetryMs >= 0 && *c.RetryMs > *row.RetryMs {
			row.RetryMs = c.RetryMs
		}
	}
}

// judgePending decides once an enforced rule denies, or none has to ask any more.
func judgePending(x *answer.Explanation) {
	asks := func(r answer.ExplainedRule) bool { return r.Pending && r.Mode == "enforced" }
	if denied := x.DeniedBy != ""; x.Pending && (denied || !slices.ContainsFunc(x.Rules, asks)) {
		allowed := !denied
		x.Pending, x.Allowed = false, &allowed
	}
}
