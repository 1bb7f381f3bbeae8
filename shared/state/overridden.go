package state

import (
	"slices"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Override is limits that some keys have instead of their rule's.
type Override struct {
	Keys    string         // says which, whatever the words
	Windows []limit.Window // parallel to the rule's; none: those keys have no limits
}

// Overridden returns a rule's windows, to be Key.Rule, with what its token
// pages must know of the keys that have limits of their own. The order of
// overrides counts, as the first that holds for a key does.
func Overridden(rule []limit.Window, overrides []Override) []limit.Window {
	rule = slices.Clone(rule)
	for i := range rule {
		if w := &rule[i]; w.Algorithm == limit.TokenBucket {
			w.Stamp, w.FillNs = overridden(w, i, overrides)
		}
	}
	return rule
}

func overridden(w *limit.Window, column int, overrides []Override) (stamp uint16, fillNs int64) {
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
