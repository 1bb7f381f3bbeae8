package clients

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Key is the key that a client has in a rule, at the proxies that say so. Proxies that run
// other policies may give the client other keys.
//
// Its texts are empty, or say:
//
//	text   set by            says                                         is never beside
//	Why    Keys              why the rule is not for the request          Only
//	Only   Keys              which requests the rule is for, because      Why
//	                         the description leaves that open
//	NoKey  Keys              why the client has no counter in the rule    Error, Counters, Reset
//	Error  Find              why the counters are not known               NoKey, Counters
//	Reset  the command line  the command that frees the key, if it        NoKey
//	                         can be written without a credential
type Key struct {
	Rule   string           `json:"rule"`
	Why    string           `json:"why,omitempty"`
	Only   string           `json:"only,omitempty"`
	NoKey  string           `json:"no_key,omitempty"`
	Key    []result.KeyPart `json:"key,omitempty"`    // without the values that are credentials
	Common bool             `json:"common,omitempty"` // no part is the client's own: others have this key too
	Error  string           `json:"error,omitempty"`
	Reset  string           `json:"reset,omitempty"`

	Counters []Counter `json:"counters,omitempty"`

	Parts []string `json:"-"` // as operations take them, credentials too

	cost     uint32            // of the described request, or the least that a request costs in this rule
	limits   []string          // that the request says
	isDenied bool              // because the request lacks a part of the key
	isExempt bool              // as the described request is
	hashes   map[string]string // of the key, by proxy
}

// Keys finds the keys of the client in all rules of all proxies. Failed are the proxies that
// did not say.
func Keys(ctx context.Context, a Asker, r *simulate.Request) (keys []*Key, failed []manage.Asked, err error) {
	withKeys := *r
	withKeys.Keys = true
	rows, err := a.Explain(ctx, withKeys.Header())
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
			rule := &row.Rules[j]
			if isOff(rule) {
				continue
			}
			k := keyOf(rule)
			k.leaveOpen(r, rule)
			keys = addKey(keys, k, row.Proxy, rule.Hash)
		}
	}
	return keys, failed, nil
}

// isOff reports whether the rule is off: it then says neither a key nor why there is none.
func isOff(r *result.ExplainedRule) bool {
	return r.Outcome != result.Matches && r.NoKey == "" && r.Hash == ""
}

// keyOf is what an explained rule says of the client.
func keyOf(r *result.ExplainedRule) *Key {
	k := &Key{
		Rule: r.Rule, NoKey: r.NoKey, Common: r.Common, cost: 1,
		isExempt: r.Outcome == result.Exempted, hashes: map[string]string{},
	}
	if r.Cost != nil {
		k.cost = *r.Cost
	}
	lacksKey := r.Outcome == result.NotKnown || r.Outcome == result.LacksKey
	switch {
	case r.Outcome == result.Matches:
		k.isDenied = r.Reason == "missing_key" && r.Mode != string(policy.ModeShadow)
		k.limits = saidLimits(r.Windows)
	case r.NoKey == "" || !lacksKey: // else NoKey says the same
		k.Why = r.Why
	}
	for _, p := range r.Key {
		value := p.Value
		if p.Missing {
			value = nil
		}
		k.Parts = append(k.Parts, policy.PartText(value))
		if p.Hidden {
			p.Value = nil
		}
		k.Key = append(k.Key, p)
	}
	return k
}

// saidLimits are the limits that the described request says, none if it leaves all to their
// defaults.
func saidLimits(windows []result.Window) (limits []string) {
	says := false
	for i := range windows {
		w := &windows[i]
		if w.LimitFrom == "" {
			continue
		}
		limits = append(limits, strconv.FormatUint(uint64(*w.Limit), 10))
		says = says || w.LimitIs != result.LimitDefault
	}
	if !says {
		return nil
	}
	return limits
}

// leaveOpen drops what the rule says of a method, host or path that the description does not
// give: the filter has put a default in its place, but a client is described, not one request.
// The rule then says which requests it is for, and has no key made of a default.
func (k *Key) leaveOpen(r *simulate.Request, rule *result.ExplainedRule) {
	for _, of := range []struct{ part, given string }{
		{policy.KeyMethod.String(), r.Method}, {policy.KeyHost.String(), r.Host}, {policy.KeyPath.String(), r.Path},
	} {
		if of.given != "" {
			continue
		}
		if rule.Failing == of.part+"s" {
			k.Only = rule.Failing + " " + rule.Wanted
			k.Why = ""
		}
		isOf := func(p result.KeyPart) bool {
			return p.Part == of.part || strings.HasPrefix(p.Part, of.part+" segment ")
		}
		if slices.ContainsFunc(k.Key, isOf) {
			k.NoKey = "the description does not give " + of.part
		}
	}
}

// addKey adds the key that a proxy says, or the proxy to an equal key that others have said.
func addKey(keys []*Key, said *Key, proxy, hash string) []*Key {
	at := slices.IndexFunc(keys, said.isEqual)
	if at < 0 {
		at = len(keys)
		keys = append(keys, said)
	}
	keys[at].hashes[proxy] = hash
	return keys
}

func (k *Key) isEqual(other *Key) bool {
	return k.Rule == other.Rule && k.Why == other.Why && k.Only == other.Only && k.NoKey == other.NoKey &&
		slices.Equal(k.Parts, other.Parts)
}

// Text is the key as people read it.
func (k *Key) Text() string { return keyText(k.Key) }

func keyText(key []result.KeyPart) string {
	if len(key) == 0 {
		return "none, one counter for all"
	}
	parts := make([]string, len(key))
	for i, p := range key {
		parts[i] = p.Part + " = " + manage.PartText(p)
	}
	return strings.Join(parts, ", ")
}
