package find

import (
	"cmp"
	"context"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/result"
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
	isPending := func(r result.ExplainedRule) bool { return r.Rule == k.Rule && r.Pending }
	return has && slices.ContainsFunc(row.Rules, isPending)
}

// answer makes the quota service's word that of the row's rule, unless only the request itself
// says the limit.
func (k *Key) answer(row *manage.ExplainRow) {
	isQuota := func(c Counter) bool { return c.Proxy == QuotaService && len(c.said.Rules) > 0 }
	isSaid := func(w result.Window) bool { return w.LimitFrom != "" }
	said := slices.IndexFunc(k.Counters, isQuota)
	if said < 0 || k.limits == nil && slices.ContainsFunc(k.Counters[said].Windows, isSaid) {
		return
	}
	decided, retry := &k.Counters[said].said.Rules[0], k.Counters[said].RetryMs
	r := &row.Rules[slices.IndexFunc(row.Rules, func(r result.ExplainedRule) bool { return r.Rule == k.Rule })]
	r.Pending, r.Allowed = false, &decided.Allowed
	r.Reason, r.Windows = decided.Reason, decided.Windows
	if decided.Allowed || r.Mode != "enforced" {
		return
	}
	row.DeniedBy = cmp.Or(row.DeniedBy, r.Rule)
	if retry != nil && (row.RetryMs == nil || *retry < 0 || *row.RetryMs >= 0 && *retry > *row.RetryMs) {
		row.RetryMs = retry
	}
}

// judgePending decides once an enforced rule denies, or none has to ask any more. What the
// description leaves open may still allow nothing, and wait for longer.
func judgePending(x *result.Explanation) {
	asks := func(r result.ExplainedRule) bool { return r.Pending && r.Mode == "enforced" }
	denied, open := x.DeniedBy != "", len(x.DependsOn) > 0
	if !x.Pending || !denied && (open || slices.ContainsFunc(x.Rules, asks)) {
		return
	}
	allowed := !denied
	x.Pending, x.Allowed = false, &allowed
	if open {
		x.RetryMs = nil
	}
}
