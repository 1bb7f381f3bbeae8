package clients

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Freed is what was done to free a client.
type Freed struct {
	Resets []Reset        `json:"resets"`
	Failed []manage.Asked `json:"failed,omitempty"` // proxies that did not say the client's keys
}

// Reset is a key of a client, and what became of it.
type Reset struct {
	Rule  string           `json:"rule"`
	Key   []result.KeyPart `json:"key"`
	Error string           `json:"error,omitempty"`
	*api.Counters
}

// NoKeyError says that a rule has no key of the client. Without a Why no proxy has the rule.
type NoKeyError struct{ Rule, Why string }

func (e *NoKeyError) Error() string {
	if e.Why == "" {
		return fmt.Sprintf("there is no rule %q, or it is off", e.Rule)
	}
	return fmt.Sprintf("rule %q has no key of this client: %s", e.Rule, e.Why)
}

// FreeIn resets the keys of the described client in one rule.
func FreeIn(ctx context.Context, a Asker, r *simulate.Request, rule string) (*Freed, error) {
	keys, failed, err := Keys(ctx, a, r)
	if err != nil {
		return nil, err
	}
	own, why := keysIn(rule, keys)
	if len(own) == 0 && len(failed) == 0 {
		return nil, &NoKeyError{rule, why}
	}
	return reset(ctx, a, own, failed)
}

// Free resets the keys of the described client in all rules, but not those that it shares with
// other clients.
func Free(ctx context.Context, a Asker, r *simulate.Request) (*Freed, error) {
	keys, failed, err := Keys(ctx, a, r)
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(keys, func(k *Key) bool { return k.NoKey != "" || k.Common })
	return reset(ctx, a, own, failed)
}

// keysIn are the keys in one rule. Why says why the rule has none.
func keysIn(rule string, keys []*Key) (own []*Key, why string) {
	for _, k := range keys {
		switch {
		case k.Rule != rule:
		case k.NoKey != "":
			why = k.NoKey
		default:
			own = append(own, k)
		}
	}
	return own, why
}

// reset resets the keys, without those that are unlimited: they have no counter.
func reset(ctx context.Context, a Asker, keys []*Key, failed []manage.Asked) (*Freed, error) {
	freed := &Freed{Resets: []Reset{}, Failed: failed}
	for _, k := range keys {
		if err := k.readCounters(ctx, a); err != nil {
			return nil, err
		}
		if k.Error == "" && !k.IsCounted() {
			continue
		}
		report, failed, err := onKey(ctx, a, manage.Reset, manage.Subject{Rule: k.Rule, Key: k.Parts})
		if err != nil {
			return nil, err
		}
		freed.Resets = append(freed.Resets, Reset{Rule: k.Rule, Key: k.Key, Error: failed, Counters: report})
	}
	return freed, nil
}

// Missed counts the counters that may still be there.
func (f *Freed) Missed() int {
	n := len(f.Failed)
	for i := range f.Resets {
		if f.Resets[i].isMissed() {
			n++
		}
	}
	return n
}

func (r *Reset) isMissed() bool {
	return r.Error != "" || slices.ContainsFunc(r.Proxies, func(row manage.Row) bool {
		return row.Error != "" || row.Silent != ""
	})
}

// Any reports whether any of the keys was there.
func (f *Freed) Any() bool {
	return slices.ContainsFunc(f.Resets, func(r Reset) bool { return !r.isMissed() && WasReset(r.Counters) })
}

// WasReset reports whether the key was there, at the quota service or at any proxy.
func WasReset(report *api.Counters) bool {
	if report.Quota != nil {
		return *report.Quota.Value > 0
	}
	return slices.ContainsFunc(report.Proxies, func(r manage.Row) bool { return r.Value != nil && *r.Value > 0 })
}

// Text is the key as people read it.
func (r *Reset) Text() string { return keyText(r.Key) }
