package find

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Reset is a key of a client, and what became of it.
type Reset struct {
	Rule  string           `json:"rule"`
	Key   []result.KeyPart `json:"key"`
	Error string           `json:"error,omitempty"`
	*api.Counters
}

// Text is the key as people read it.
func (r *Reset) Text() string { return (&Key{Key: r.Key}).Text() }

// Freed is what was done to free a client.
type Freed struct {
	Resets []Reset        `json:"resets"`
	Failed []manage.Asked `json:"failed,omitempty"` // proxies that did not say their keys
}

// NoKeyError says that a rule has no key of the client, and why. Without a reason no proxy has
// the rule.
type NoKeyError struct{ Rule, Why string }

func (e *NoKeyError) Error() string {
	if e.Why == "" {
		return fmt.Sprintf("there is no rule %q, or it is off", e.Rule)
	}
	return fmt.Sprintf("rule %q has no key of this client: %s", e.Rule, e.Why)
}

// Free resets the keys of the client that the request describes: in the rule, or with "" in
// all rules where it has one that others do not share.
func Free(ctx context.Context, a Asker, r *simulate.Request, rule string) (*Freed, error) {
	keys, failed, err := Keys(ctx, a, r)
	if err != nil {
		return nil, err
	}
	if rule != "" {
		keys, err = keysOf(rule, keys, failed)
		if err != nil {
			return nil, err
		}
	}
	freed := &Freed{Resets: []Reset{}, Failed: failed}
	for _, k := range keys {
		if k.NoKey != "" || rule == "" && k.Common {
			continue
		}
		if err := k.read(ctx, a); err != nil {
			return nil, err
		}
		if k.Error == "" && !k.IsCounted() {
			continue // an unlimited key has no counter
		}
		one := Reset{Rule: k.Rule, Key: k.Key}
		one.Counters, one.Error, err = onKey(ctx, a, "reset", manage.Subject{Rule: k.Rule, Key: k.Parts})
		if err != nil {
			return nil, err
		}
		freed.Resets = append(freed.Resets, one)
	}
	return freed, nil
}

// keysOf are the keys in one rule. It is an error if no proxy has the rule, or has a key of
// the client in it.
func keysOf(rule string, keys []*Key, failed []manage.Asked) (own []*Key, err error) {
	noKey := ""
	for _, k := range keys {
		switch {
		case k.Rule != rule:
		case k.NoKey != "":
			noKey = k.NoKey
		default:
			own = append(own, k)
		}
	}
	if len(own) > 0 || len(failed) > 0 {
		return own, nil
	}
	return nil, &NoKeyError{rule, noKey}
}

// Missed counts the counters of which it is not known whether they were reset.
func (f *Freed) Missed() int {
	n := len(f.Failed)
	for i := range f.Resets {
		if f.Resets[i].missed() {
			n++
		}
	}
	return n
}

func (r *Reset) missed() bool {
	missed := func(row manage.Row) bool { return row.Error != "" || row.Silent != "" }
	return r.Error != "" || slices.ContainsFunc(r.Proxies, missed)
}

// Any reports whether anybody had one of the keys.
func (f *Freed) Any() bool {
	return slices.ContainsFunc(f.Resets, func(r Reset) bool { return !r.missed() && WasReset(r.Counters) })
}

// WasReset reports whether anybody had the key.
func WasReset(report *api.Counters) bool {
	if report.Quota != nil {
		return *report.Quota.Value > 0
	}
	return slices.ContainsFunc(report.Proxies, func(r manage.Row) bool { return r.Value != nil && *r.Value > 0 })
}
