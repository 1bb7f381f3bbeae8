// Package find finds the counters of a client that one of its requests describes, in all
// rules of all proxies, and frees it.
//
// Its invariant: it counts nothing, and shows no value that is a credential. The command line
// and the console ask through it alike; it must never import either.
package find

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// QuotaService is how the quota service is called among proxies.
const QuotaService = "quota service"

// Asker asks the proxies of a policy. An error is that of the whole call: rows have those of
// their proxies.
type Asker interface {
	Counters(ctx context.Context, op manage.Operation, query url.Values) (*api.Counters, error)
	Explain(ctx context.Context, described string) ([]manage.ExplainRow, error)
}

// Key is a rule with the key that a described client has in it, at the proxies that say so.
// Proxies that run other policies may have the client by other keys.
type Key struct {
	Rule   string           `json:"rule"`
	Why    string           `json:"why,omitempty"`    // why the rule is not for the described request
	Only   string           `json:"only,omitempty"`   // which requests it is for, where the description does not say
	NoKey  string           `json:"no_key,omitempty"` // why the client has no counter in it
	Key    []result.KeyPart `json:"key,omitempty"`    // without the values that are credentials
	Common bool             `json:"common,omitempty"` // nothing of the key is the client's: others have it too
	Error  string           `json:"error,omitempty"`  // why the counter is not known
	Reset  string           `json:"reset,omitempty"`  // the command that frees it; none prints a credential

	Counters []Counter `json:"counters,omitempty"`

	Parts []string `json:"-"` // as operations take them; of credentials, too

	cost   uint32            // of the described request, or the least of the rule's
	limits []string          // that it says
	denied bool              // by lack of a key
	exempt bool              // as the described request is
	hashes map[string]string // by proxy
}

// Counter is what one proxy, or the quota service, has counted of a key.
type Counter struct {
	manage.Asked
	Allowed  *bool           `json:"allowed,omitempty"` // whether the request would be now, by this rule
	Reason   string          `json:"reason,omitempty"`
	RetryMs  *int64          `json:"retry_after_ms,omitempty"`
	Override string          `json:"override,omitempty"`
	Windows  []result.Window `json:"windows,omitempty"`
	Held     *uint32         `json:"held,omitempty"`   // units that requests hold until their answers
	Holds    *int64          `json:"holds,omitempty"`  // units that a proxy has leased
	Hash     string          `json:"hash,omitempty"`   // of the key, as counters top shows it
	Denied   *uint32         `json:"denied,omitempty"` // times lately, if the key is one of those that top shows

	said result.Result
}

// Report is the counters of a client.
type Report struct {
	DeniedBy []string       `json:"denied_by"` // rules that deny the client now
	Rules    []*Key         `json:"rules"`
	Failed   []manage.Asked `json:"failed,omitempty"` // proxies that did not say their keys
}

// Client finds the counters of the client that the request describes.
func Client(ctx context.Context, a Asker, r *simulate.Request) (*Report, error) {
	keys, failed, err := Keys(ctx, a, r)
	if err != nil {
		return nil, err
	}
	report := &Report{DeniedBy: []string{}, Rules: keys, Failed: failed}
	for _, k := range keys {
		if k.NoKey == "" {
			if err := k.read(ctx, a); err != nil {
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

// Keys finds the keys of the client in all rules of all proxies. Failed are the proxies that
// did not say.
func Keys(ctx context.Context, a Asker, r *simulate.Request) (keys []*Key, failed []manage.Asked, err error) {
	asked := *r
	asked.Keys = true
	rows, err := a.Explain(ctx, asked.Header())
	if err != nil {
		return nil, nil, err
	}
	for i := range rows {
		row := &rows[i]
		if row.Error != "" {
			failed = append(failed, row.Asked)
			continue
		}
		for j := range row.Rules {
			if said := keyOf(&row.Rules[j]); said != nil {
				said.leaveOpen(r)
				keys = addKey(keys, said, row.Proxy, row.Rules[j].Hash)
			}
		}
	}
	return keys, failed, nil
}

// keyOf is what an explained rule says of the client, nil where the rule is off.
func keyOf(r *result.ExplainedRule) *Key {
	k := &Key{
		Rule: r.Rule, NoKey: r.NoKey, Key: slices.Clone(r.Key), Common: r.Common, cost: 1, hashes: map[string]string{},
	}
	if r.Cost != nil {
		k.cost = *r.Cost
	}
	switch {
	case r.Outcome == result.Matches:
		k.denied = r.Reason == "missing_key" && r.Mode != string(policy.ModeShadow)
		k.limits = saidLimits(r.Windows)
	case r.NoKey == "" && r.Hash == "":
		return nil
	case r.NoKey == "" || r.Outcome != result.NotKnown && r.Outcome != result.LacksKey:
		k.Why = r.Why
	}
	k.exempt = r.Outcome == result.Exempted
	for i, p := range r.Key {
		value := p.Value
		if p.Missing {
			value = nil
		}
		k.Parts = append(k.Parts, policy.PartText(value))
		if p.Hidden {
			k.Key[i].Value = nil
		}
	}
	return k
}

// leaveOpen takes no method, host or path for said that only stands for one which the
// description does not give: a client is described, not one request. The rule says which
// requests it is for, in place of why it is not for the stand-in, and has no key of it.
func (k *Key) leaveOpen(r *simulate.Request) {
	for _, of := range []struct{ part, given, standIn string }{
		{"method", r.Method, "GET"}, {"host", r.Host, "nothing"}, {"path", r.Path, "/"},
	} {
		if of.given != "" {
			continue
		}
		if wanted, fails := strings.CutPrefix(k.Why, of.part+"s: "+of.standIn+" is not one of "); fails {
			k.Only = of.part + "s " + wanted
			k.Why = ""
		}
		if slices.ContainsFunc(k.Key, func(p result.KeyPart) bool { return p.Part == of.part }) {
			k.NoKey = "the description does not give " + of.part
		}
	}
}

// saidLimits are the limits that the described request says, none if all are the defaults.
func saidLimits(windows []result.Window) (limits []string) {
	says := false
	for i := range windows {
		if w := &windows[i]; w.LimitFrom != "" {
			limits = append(limits, strconv.FormatUint(uint64(*w.Limit), 10))
			says = says || w.LimitIs != result.LimitDefault
		}
	}
	if !says {
		return nil
	}
	return limits
}

// addKey adds what a proxy says to what others have said alike.
func addKey(keys []*Key, said *Key, proxy, hash string) []*Key {
	at := slices.IndexFunc(keys, func(k *Key) bool {
		alike := k.Rule == said.Rule && k.Why == said.Why && k.Only == said.Only && k.NoKey == said.NoKey
		return alike && slices.Equal(k.Parts, said.Parts)
	})
	if at < 0 {
		at = len(keys)
		keys = append(keys, said)
	}
	keys[at].hashes[proxy] = hash
	return keys
}

// onKey does an operation on one of the client's keys. That it failed is no reason to leave
// out the others, unless the caller has gone.
func onKey(
	ctx context.Context, a Asker, name string, s manage.Subject,
) (report *api.Counters, failed string, err error) {
	op := manage.OperationOf(name)
	query, err := op.Query(s)
	if err == nil {
		report, err = a.Counters(ctx, op, query)
	}
	if err != nil && ctx.Err() == nil {
		return nil, err.Error(), nil
	}
	return report, "", err
}

// read adds the counters of the key.
func (k *Key) read(ctx context.Context, a Asker) (err error) {
	var report *api.Counters
	report, k.Error, err = onKey(ctx, a, "peek", manage.Subject{
		Rule: k.Rule, Key: k.Parts, N: strconv.FormatUint(uint64(k.cost), 10), Limits: k.limits,
	})
	if report == nil {
		return err
	}
	if report.Quota != nil {
		k.add(manage.Asked{Proxy: QuotaService}, report.Quota)
	}
	for i := range report.Proxies {
		r := &report.Proxies[i]
		if _, has := k.hashes[r.Proxy]; has {
			k.add(r.Asked, &r.Result)
		}
	}
	return nil
}

func (k *Key) add(asked manage.Asked, a *result.Result) {
	c := Counter{
		Asked: asked, Allowed: a.Allowed, RetryMs: a.RetryMs, Holds: a.Value, Hash: k.hashes[asked.Proxy], said: *a,
	}
	for _, v := range a.Rules { // one
		c.Reason = v.Reason
		c.Override = v.Override
		c.Windows = v.Windows
		c.Held = v.Held
	}
	k.Counters = append(k.Counters, c)
}

// Denies reports whether the rule denies the client now, in requests that it is for. One
// that exempts the described request says nothing of the client.
func (k *Key) Denies() bool {
	denies := func(c Counter) bool { return c.Allowed != nil && !*c.Allowed }
	return k.denied || !k.exempt && slices.ContainsFunc(k.Counters, denies)
}

// IsCounted reports whether any proxy counts the key: it does not where the key is unlimited.
func (k *Key) IsCounted() bool {
	return slices.ContainsFunc(k.Counters, func(c Counter) bool { return len(c.Windows) > 0 })
}

// Text is the key as people read it.
func (k *Key) Text() string {
	if len(k.Key) == 0 {
		return "none, one counter for all"
	}
	parts := make([]string, len(k.Key))
	for i, p := range k.Key {
		parts[i] = p.Part + " = " + manage.PartText(p)
	}
	return strings.Join(parts, ", ")
}

// Now is whether the proxy would allow the request, in words.
func (c *Counter) Now() string {
	switch {
	case c.Error != "":
		return "failed: " + c.Error
	case c.Allowed == nil:
		return "holds " + strconv.FormatInt(*c.Holds, 10)
	case c.Override != "":
		return manage.VerdictText(&c.said) + ", override " + c.Override
	}
	return manage.VerdictText(&c.said)
}

// addDenials adds how often keys were denied lately, as far as proxies keep that.
func addDenials(ctx context.Context, a Asker, keys []*Key) {
	report, err := a.Counters(ctx, manage.OperationOf("top"), url.Values{})
	if err != nil {
		return // the policy keeps none
	}
	for _, k := range keys {
		for i := range k.Counters {
			k.Counters[i].addDenials(k, report)
		}
	}
}

func (c *Counter) addDenials(k *Key, top *api.Counters) {
	for _, row := range top.Proxies {
		for _, rule := range row.Denials {
			for _, of := range rule.Keys {
				is := of.Hash == c.Hash || of.Hash == "" && !of.Cut && slices.Equal(manage.KeyParts(&of), k.Parts)
				if row.Proxy == c.Proxy && rule.Rule == k.Rule && is {
					c.Denied = &of.Denied
				}
			}
		}
	}
}
