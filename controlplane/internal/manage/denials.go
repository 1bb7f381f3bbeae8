package manage

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

// Denials adds up what the proxies know of the keys that are denied most. The rules are in the
// order in which a proxy first names them.
func Denials(rows []Row) []result.Denials {
	sum := denialSum{byRule: map[string]*ruleSum{}, keys: numberedKeys{numbers: map[string]uint64{}}}
	for i := range rows {
		for j := range rows[i].Denials {
			sum.add(&rows[i].Denials[j])
		}
	}
	denials := make([]result.Denials, len(sum.rules))
	for i, r := range sum.rules {
		denials[i] = r.total(&sum.keys)
	}
	return denials
}

// denialSum is what has been added so far.
type denialSum struct {
	rules  []*ruleSum // in order
	byRule map[string]*ruleSum
	keys   numberedKeys
}

// ruleSum is one rule: its name, mode and time, and the list of each proxy.
type ruleSum struct {
	result.Denials
	lists []top.List
}

func (s *denialSum) add(d *result.Denials) {
	r := s.byRule[d.Rule]
	if r == nil {
		r = &ruleSum{Denials: result.Denials{Rule: d.Rule, Mode: d.Mode, SinceMs: d.SinceMs}}
		s.byRule[d.Rule] = r
		s.rules = append(s.rules, r)
	}
	if r.Mode != d.Mode {
		r.Mode = result.PartlyEnforced
	}
	r.Blocks = r.Blocks || d.Blocks
	if d.SinceMs != 0 && (r.SinceMs == 0 || d.SinceMs < r.SinceMs) {
		r.SinceMs = d.SinceMs
	}
	list := top.List{Rest: d.Rest}
	for i := range d.Keys {
		k := &d.Keys[i]
		list.Keys = append(list.Keys, top.Key{ID: s.keys.number(k), Denied: k.Denied, Error: k.Error})
	}
	r.lists = append(r.lists, list)
}

func (r *ruleSum) total(keys *numberedKeys) result.Denials {
	merged := top.Merge(r.lists...)
	d := r.Denials
	d.Rest = merged.Rest
	d.Keys = make([]result.DeniedKey, len(merged.Keys))
	for i := range merged.Keys {
		m := &merged.Keys[i]
		d.Keys[i] = keys.list[m.ID]
		d.Keys[i].Denied = m.Denied
		d.Keys[i].Error = m.Error
	}
	return d
}

// numberedKeys numbers keys: package top tells them apart by number.
type numberedKeys struct {
	list    []result.DeniedKey
	numbers map[string]uint64 // by identity
}

func (n *numberedKeys) number(k *result.DeniedKey) uint64 {
	name := identity(k)
	number, ok := n.numbers[name]
	if !ok {
		number = uint64(len(n.list))
		n.numbers[name] = number
		n.list = append(n.list, *k)
	}
	return number
}

// identity tells keys apart. Two that are cut to the same text count as one.
func identity(k *result.DeniedKey) string {
	text := k.Hash
	for _, part := range k.Key {
		text += "\x00"
		if part != nil {
			text += "\x01" + *part
		}
	}
	if k.Cut {
		text += "\x00cut"
	}
	return text
}

// KeyParts are the parts of a key as operations take them.
func KeyParts(k *result.DeniedKey) []string {
	parts := make([]string, len(k.Key))
	for i, part := range k.Key {
		parts[i] = policy.PartText(part)
	}
	return parts
}

// KeyText is a key as people read it.
func KeyText(k *result.DeniedKey) string {
	if k.Hash != "" {
		return "hash " + k.Hash
	}
	if len(k.Key) == 0 && !k.Cut {
		return "(one counter for all)"
	}
	text := strings.Join(KeyParts(k), ", ")
	if k.Cut {
		text += "…"
	}
	return text
}
