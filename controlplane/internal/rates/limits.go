package rates

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

// limits are those of one revision of a policy: to read a policy takes memory and time.
type limits struct {
	reading  sync.Mutex // held while they are read
	revision uint64     // whose they are
	rules    map[string]ruleLimits
}

// ruleLimits is what the page of a rule says of its limits.
type ruleLimits struct {
	each   string
	limits []Limit
}

// at returns those of a revision, by rule, none where it is damaged.
func (l *limits) at(
	ctx context.Context, revision uint64, read func(context.Context, uint64) (*policy.Policy, error),
) (map[string]ruleLimits, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	if revision == l.revision {
		return l.rules, nil
	}
	p, err := read(ctx, revision)
	switch {
	case errors.Is(err, store.ErrDamaged):
		return nil, nil //nolint:nilnil // its limits are not known
	case err != nil:
		return nil, err
	}
	l.revision = revision
	l.rules = map[string]ruleLimits{}
	if p != nil {
		l.rules = limitsOf(p)
	}
	return l.rules, nil
}

// limitsOf are the limits of a policy, by rule.
func limitsOf(p *policy.Policy) map[string]ruleLimits {
	all := map[string]ruleLimits{}
	for i := range p.Rules {
		r := &p.Rules[i]
		of := ruleLimits{}
		switch {
		case len(r.Key) > 0:
			of.each = "key"
		case r.Scope == policy.ScopeProxy:
			of.each = "proxy"
		}
		for j := range r.Limits {
			of.limits = append(of.limits, limitOf(r, j))
		}
		all[r.Name] = of
	}
	return all
}

// limitOf is the limit i of a rule in words.
func limitOf(r *policy.Rule, i int) Limit {
	l := &r.Limits[i]
	w := counted.Window{Name: l.Name, Unlimited: l.Unlimited, Months: l.Months(), PerMs: counted.Milliseconds(l.PeriodNs)}
	if l.Algorithm == limit.Concurrency {
		w.PerMs = 0
	}
	w.SetLimit(&l.Window, 0)
	w.SetLimitFrom(r, i, &policy.Subject{Override: -1})
	rated := Limit{Text: manage.LimitText(&w, "unlimited")}
	if l.Requested != nil {
		rated.Text += fmt.Sprintf(", up to %d", l.Most())
	}
	if fixed := len(r.Costs) == 0 && r.Cost.IsFixed() && r.Settle == nil && r.Cost.Fixed > 0; fixed && w.PerMs > 0 {
		rated.Rate = float64(l.Most()) / float64(r.Cost.Fixed) / (float64(l.PeriodNs) / float64(time.Second))
	}
	return rated
}
