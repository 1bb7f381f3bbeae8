package state

import (
	"slices"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// A page's floor has of a token bucket when it is full. How many tokens it lacks follows from that by the limits
// with which it was counted, and overrides give some keys other limits. So a stamp of all overrides is written with the
// instant: by it a floor is known that was counted with other overrides. See Stamps in package limit.

// Override is the limits that some keys have instead of their rule's.
type Override struct {
	Keys    string         // identifies the keys, in any form
	Windows []limit.Window // in the order of the rule's; none: these keys have no limits
}

// Overridden returns a rule's windows for Key.OfRule: token buckets get the stamp of
// the overrides and the fill time of the slowest bucket. The order of overrides
// matters, because the first that matches a key holds.
func Overridden(rule []limit.Window, overrides []Override) []limit.Window {
	rule = slices.Clone(rule)
	for i := range rule {
		if w := &rule[i]; w.Algorithm == limit.TokenBucket {
			w.Stamp, w.FillNs = stampFor(w, i, overrides)
		}
	}
	return rule
}

// stampFor returns the stamp and the longest fill time of a window's overrides;
// both are 0 if no override changes the window's limits.
func stampFor(w *limit.Window, column int, overrides []Override) (stamp uint16, fillNs int64) {
	var text []byte
	differs := false
	for _, o := range overrides {
		text = AppendPart(text, o.Keys)
		if len(o.Windows) == 0 {
			text = append(text, 0)
			continue
		}
		own := o.Windows[column]
		kind := byte(1)
		if own.Unlimited {
			kind = 2
		}
		text = le.AppendUint32(le.AppendUint32(append(text, kind), own.Limit), own.Burst)
		differs = differs || own.Limit != w.Limit || own.Burst != w.Burst || own.Unlimited != w.Unlimited
		fillNs = max(fillNs, own.Fill())
	}
	if !differs {
		return 0, 0
	}
	return limit.NewStamp(siphash.Hash(0, 3, text)), fillNs
}
