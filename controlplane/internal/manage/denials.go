package manage

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// Denials adds up what the proxies know of the keys that are denied most: the rules in
// the order in which a proxy first names them.
func Denials(rows []Row) (sum []answer.Denials) {
	places := map[string]int{}     // of rules in sum
	numbers := map[string]uint64{} // of keys, by what tells them apart
	var keys []answer.DeniedKey
	lists := map[string][]top.List{}
	for i := range rows {
		for _, d := range rows[i].Denials {
			at, have := places[d.Rule]
			if !have {
				at, sum = len(sum), append(sum, answer.Denials{Rule: d.Rule, Mode: d.Mode, SinceMs: d.SinceMs})
				places[d.Rule] = at
			}
			if sum[at].Mode != d.Mode {
				sum[at].Mode = answer.PartlyEnforced
			}
			if s := &sum[at]; d.SinceMs != 0 && (s.SinceMs == 0 || d.SinceMs < s.SinceMs) {
				s.SinceMs = d.SinceMs
			}
			list := top.List{Rest: d.Rest}
			for _, k := range d.Keys {
				name := identity(&k)
				number, have := numbers[name]
				if !have {
					number = uint64(len(keys))
					numbers[name] = number
					keys = append(keys, k)
				}
				list.Keys = append(list.Keys, top.Key{ID: number, Denied: k.Denied, Error: k.Error})
			}
			lists[d.Rule] = append(lists[d.Rule], list)
		}
	}
	for i := range sum {
		merged := top.Merge(lists[sum[i].Rule]...)
		sum[i].Rest, sum[i].Keys = merged.Rest, make([]answer.DeniedKey, len(merged.Keys))
		for j := range merged.Keys {
			k := keys[merged.Keys[j].ID]
			k.Denied, k.Error = merged.Keys[j].Denied, merged.Keys[j].Error
			sum[i].Keys[j] = k
		}
	}
	return sum
}

// identity tells keys apart. Of two that are cut alike nobody can say whether they are
// the same.
func identity(k *answer.DeniedKey) string {
	text := k.Hash
	for _, part := range k.Key {
		if text += "\x00"; part != nil {
			text += "\x01" + *part
		}
	}
	if k.Cut {
		text += "\x00cut"
	}
	return text
}

// KeyParts are the parts of a key as operations take them.
func KeyParts(k *answer.DeniedKey) []string {
	parts := make([]string, len(k.Key))
	for i, part := range k.Key {
		parts[i] = policy.PartText(part)
	}
	return parts
}

// KeyText is a key as people read it.
func KeyText(k *answer.DeniedKey) string {
	if k.Hash != "" {
		return "hash " + k.Hash
	}
	text := strings.Join(KeyParts(k), ", ")
	if k.Cut {
		text += "…"
	}
	if len(k.Key) == 0 && !k.Cut {
		return "(one counter for all)"
	}
	return text
}
