// Package clients finds the counters of a client, says which of them deny it, and frees it. It
// goes from a description of the client (package describe) to the keys that the client has in
// all rules of all proxies, and from each key to calls.
//
// Its invariant: it counts nothing and shows no value that is a credential. Both the command line
// and the console ask through it; it must never import either.
package clients

import (
	"context"
	"net/url"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// QuotaService is the name of the quota service in the place of a proxy's.
const QuotaService = "quota service"

// Report is the counters of a client.
type Report struct {
	DeniedBy []string       `json:"denied_by"` // rules that deny the client now
	Rules    []*Key         `json:"rules"`
	Failed   []manage.Asked `json:"failed,omitempty"` // proxies that did not say the client's keys
}

// Counter is what one proxy, or the quota service, has counted for a key.
type Counter struct {
	manage.Asked
	Allowed  *bool           `json:"allowed,omitempty"` // whether this rule would allow the request now
	Reason   string          `json:"reason,omitempty"`
	RetryMs  *int64          `json:"retry_after_ms,omitempty"`
	Override string          `json:"override,omitempty"`
	Windows  []result.Window `json:"windows,omitempty"`
	Held     *uint32         `json:"held,omitempty"` // units that requests hold until their answers
	// BlockedMs is what is left of the key's block.
	BlockedMs int64   `json:"blocked_ms,omitempty"`
	Leased    *int64  `json:"holds,omitempty"`  // units that a proxy has leased
	Hash      string  `json:"hash,omitempty"`   // of the key, as counters top shows it
	Denied    *uint32 `json:"denied,omitempty"` // times lately, if counters top shows the key

	result result.Result
}

// Find finds the counters of the client that the request describes.
func Find(ctx context.Context, a Asker, r *simulate.Request) (*Report, error) {
	keys, failed, err := Keys(ctx, a, r)
	if err != nil {
		return nil, err
	}
	report := &Report{DeniedBy: []string{}, Rules: keys, Failed: failed}
	for _, k := range keys {
		if k.NoKey == "" {
			if err := k.readCounters(ctx, a); err != nil {
				return nil, err
			}
		}
		if k.Denies() && !slices.Contains(report.DeniedBy, k.Rule) {
			report.DeniedBy = append(report.DeniedBy, k.Rule)
		}
	}
	if report.Found() {
		addDenials(ctx, a, keys)
	}
	return report, nil
}

// Found reports whether any rule has a key of the client.
func (r *Report) Found() bool {
	return slices.ContainsFunc(r.Rules, func(k *Key) bool { return k.NoKey == "" })
}

// IsPartial reports whether some counters are not known.
func (r *Report) IsPartial() bool {
	return len(r.Failed) > 0 || slices.ContainsFunc(r.Rules, func(k *Key) bool {
		return k.Error != "" || slices.ContainsFunc(k.Counters, func(c Counter) bool { return c.Error != "" })
	})
}

// readCounters adds the counters of the key: of the quota service, if it has answered, and of
// the proxies that have the key.
func (k *Key) readCounters(ctx context.Context, a Asker) error {
	subject := manage.Subject{
		Rule: k.Rule, Key: k.Parts, N: strconv.FormatUint(uint64(k.cost), 10), Limits: k.limits,
	}
	report, failed, err := onKey(ctx, a, manage.Peek, subject)
	k.Error = failed
	if report == nil {
		return err
	}
	if report.Quota != nil {
		k.addCounter(manage.Asked{Proxy: QuotaService}, report.Quota)
	}
	for i := range report.Proxies {
		row := &report.Proxies[i]
		if _, ok := k.hashes[row.Proxy]; ok {
			k.addCounter(row.Asked, &row.Result)
		}
	}
	return nil
}

// onKey does an operation on one key. If the operation fails, failed says why and err is nil, so that
// the caller can go on with the next key. An err means that the context has ended.
func onKey(
	ctx context.Context, a Asker, op manage.Operation, s manage.Subject,
) (report *api.Counters, failed string, err error) {
	query, err := op.Query(s)
	if err == nil {
		report, err = a.Counters(ctx, op, query)
	}
	if err != nil && ctx.Err() == nil {
		return nil, err.Error(), nil
	}
	return report, "", err
}

func (k *Key) addCounter(asked manage.Asked, a *result.Result) {
	c := Counter{
		Asked: asked, Allowed: a.Allowed, RetryMs: a.RetryMs, Leased: a.Value, Hash: k.hashes[asked.Proxy], result: *a,
	}
	for _, rule := range a.Rules { // it is one at most
		c.Reason = rule.Reason
		c.Override = rule.Override
		c.Windows = rule.Windows
		c.Held = rule.Held
		c.BlockedMs = rule.BlockedMs
	}
	k.Counters = append(k.Counters, c)
}

// Denies reports whether the rule denies the client now, in the requests that it is for. If it
// exempts the described request, its counter says nothing of the client.
func (k *Key) Denies() bool {
	return k.isDenied || !k.isExempt && slices.ContainsFunc(k.Counters, func(c Counter) bool {
		return c.Allowed != nil && !*c.Allowed
	})
}

// IsCounted reports whether any proxy counts the key. Unlimited keys are not counted.
func (k *Key) IsCounted() bool {
	return slices.ContainsFunc(k.Counters, func(c Counter) bool { return len(c.Windows) > 0 })
}

// Now says in words whether the proxy would allow the request.
func (c *Counter) Now() string {
	switch {
	case c.Error != "":
		return "failed: " + c.Error
	case c.Allowed == nil:
		return "holds " + strconv.FormatInt(*c.Leased, 10)
	case c.Override != "":
		return manage.VerdictText(&c.result) + ", override " + c.Override
	}
	return manage.VerdictText(&c.result)
}

// addDenials adds how often each key was denied lately, where proxies keep that.
func addDenials(ctx context.Context, a Asker, keys []*Key) {
	top, err := a.Counters(ctx, manage.Top, url.Values{})
	if err != nil {
		return // the policy keeps no denials
	}
	for _, k := range keys {
		for i := range k.Counters {
			c := &k.Counters[i]
			at := slices.IndexFunc(top.Proxies, func(row manage.Row) bool { return row.Proxy == c.Proxy })
			if at >= 0 {
				c.Denied = deniedTimes(top.Proxies[at].Denials, k, c.Hash)
			}
		}
	}
}

// deniedTimes is how often a proxy has denied the key lately, nil if its lists lack the key.
func deniedTimes(lists []result.Denials, k *Key, hash string) *uint32 {
	for i := range lists {
		if lists[i].Rule != k.Rule {
			continue
		}
		for j := range lists[i].Keys {
			d := &lists[i].Keys[j]
			isPlain := d.Hash == "" && !d.Cut && slices.Equal(manage.KeyParts(d), k.Parts)
			if d.Hash == hash || isPlain {
				return &d.Denied
			}
		}
	}
	return nil
}
