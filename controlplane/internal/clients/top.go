package clients

import (
	"context"
	"net/url"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// maxAskingBlocks is how long Top goes on asking about keys. A proxy that does not answer takes its whole
// timeout for each key.
const maxAskingBlocks = 10 * time.Second

// Why Top does not ask whether a key is blocked.
const (
	onlyHash = "the proxies show only its hash: see report_keys"
	isCut    = "the key is cut"
	tooLate  = "not asked: the keys before it took " // and maxAskingBlocks
)

// Top finds the keys that rules deny most, as the operation top does, and asks for the counters of those
// whose rule has a block: a list of denials does not know of a reset, so it cannot say who is still blocked.
func Top(ctx context.Context, a Asker, query url.Values) (*api.Counters, error) {
	report, err := a.Counters(ctx, manage.Top, query)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(maxAskingBlocks)
	for i := range report.Denials {
		d := &report.Denials[i]
		if !d.Blocks {
			continue
		}
		for j := range d.Keys {
			if err := addBlock(ctx, a, d.Rule, &d.Keys[j], until); err != nil {
				return nil, err
			}
		}
	}
	return report, nil
}

// whyNotAsked is why nobody can be asked about the key, empty if somebody can.
func whyNotAsked(k *result.DeniedKey, until time.Time) string {
	switch {
	case k.Hash != "":
		return onlyHash
	case k.Cut:
		return isCut
	case time.Now().After(until):
		return tooLate + maxAskingBlocks.String()
	}
	return ""
}

// addBlock asks whether the key is blocked: the quota service, or else all proxies. If several proxies block
// it, the longest block counts.
func addBlock(ctx context.Context, a Asker, rule string, k *result.DeniedKey, until time.Time) error {
	k.BlockedNotKnown = whyNotAsked(k, until)
	if k.BlockedNotKnown != "" {
		return nil
	}
	report, failed, err := onKey(ctx, a, manage.Get, manage.Subject{Rule: rule, Key: manage.KeyParts(k)})
	k.BlockedNotKnown = failed
	if report == nil {
		return err
	}
	if report.Quota != nil {
		k.BlockedMs = &report.Quota.BlockedMs
		return nil
	}
	var blockedMs int64
	for i := range report.Proxies {
		row := &report.Proxies[i]
		if row.Error != "" {
			k.BlockedNotKnown = row.Proxy + " failed: " + row.Error
			continue
		}
		blockedMs = max(blockedMs, row.BlockedMs)
	}
	if blockedMs > 0 || k.BlockedNotKnown == "" {
		k.BlockedMs = &blockedMs
	}
	return nil
}
