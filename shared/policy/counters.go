package policy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

const (
	// maxPageBytes is the most that the host copies at a time for one request.
	maxPageBytes = 16 << 10
	// minSlots is how many keys share a page at least.
	minSlots = 4
)

// checkRules checks what no rule can say alone.
func (r *reader) checkRules(p *Policy) {
	byName := make(map[string]int, len(p.Rules))
	byCounter := make(map[string]int, len(p.Rules))
	for i := range p.Rules {
		rule, at := &p.Rules[i], r.rules[i]
		if first, found := byName[rule.Name]; found && rule.Name != "" {
			r.failTwice(at.field("name"), RuleNameTwice, r.rules[first].value, rule.Name)
		} else {
			byName[rule.Name] = i
		}
		if !at.sound {
			continue
		}
		if first, found := byCounter[rule.Counter]; found {
			r.sameCounter(at.value, rule, r.rules[first].value, &p.Rules[first])
		} else {
			byCounter[rule.Counter] = i
		}
	}
	if r.count() > 0 {
		return
	}
	for i := range p.Rules {
		if first := byCounter[p.Rules[i].Counter]; first != i {
			p.Rules[first].joinUnits(&p.Rules[i])
		}
	}
	for i := range p.Rules {
		if first := byCounter[p.Rules[i].Counter]; first != i {
			p.Rules[i].joinUnits(&p.Rules[first])
		} else {
			r.fitsPage(r.rules[i].value, &p.Rules[i])
		}
	}
}

// sameCounter refuses a rule that shares a counter whose records it could not
// read: both must agree on keys, windows and capacity. Limits may differ.
func (r *reader) sameCounter(v value, rule *Rule, other value, first *Rule) {
	if rule.KeyDefinition() != first.KeyDefinition() {
		r.failTwice(v.field("key"), CounterKey, other, rule.Counter)
	}
	switch {
	case rule.HoldNs != first.HoldNs:
		r.failTwice(v.field("hold"), CounterHold, other, rule.Counter)
	case !sameBlock(rule.Block, first.Block):
		r.failTwice(v.field("block"), CounterBlock, other, rule.Counter)
	case !sameWindows(rule.Limits, first.Limits):
		r.failTwice(v.field("limits"), CounterWindows, other, rule.Counter)
	}
	if rule.Capacity != first.Capacity {
		r.failTwice(v.field("capacity"), CounterCapacity, other, rule.Counter,
			itoa(int64(rule.Capacity)), itoa(int64(first.Capacity)))
	}
	r.sameLeases(v, rule, other, first)
}

func sameBlock(a, b *Block) bool {
	return (a == nil) == (b == nil) && (a == nil || a.window() == b.window())
}

// window counts the denials of a key, in its record.
func (b *Block) window() limit.Window { return limit.NewBlock(b.ForNs, b.Prolong) }

// sameWindows compares as sets: within a rule all windows differ.
func sameWindows(a, b []Limit) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(l Limit) bool {
		return !slices.ContainsFunc(b, func(other Limit) bool { return other.Same(l.Window) })
	})
}

// setUnits makes each log of the rule remember as much as any key may use.
func (r *Rule) setUnits() {
	for i := range r.Limits {
		if r.Limits[i].Algorithm != limit.SlidingWindowLog {
			continue
		}
		units := r.Limits[i].Most()
		for j := range r.Overrides {
			if l := r.Overrides[j].Limits; i < len(l) && !l[i].Unlimited {
				units = max(units, l[i].Limit)
			}
		}
		r.remember(i, uint16(min(units, limit.MaxLog)))
	}
}

// joinUnits makes the logs of r remember at least as much as those of another
// rule of its counter, whose records they share.
func (r *Rule) joinUnits(other *Rule) {
	for i := range r.Limits {
		for _, l := range other.Limits {
			if l.Same(r.Limits[i].Window) && l.Units > r.Limits[i].Units {
				r.remember(i, l.Units)
			}
		}
	}
}

func (r *Rule) remember(i int, units uint16) {
	r.Limits[i].Units = units
	for j := range r.Overrides {
		if l := r.Overrides[j].Limits; i < len(l) {
			l[i].Units = units
		}
	}
}

// fitsPage bounds what one request makes the host copy: a single log fits,
// several long ones do not.
func (r *reader) fitsPage(v value, rule *Rule) {
	layout := page.NewLayout(rule.Windows(), minSlots)
	if layout.ValueBytes() > maxPageBytes {
		units := 0
		for i := range rule.Limits {
			units += int(rule.Limits[i].Units)
		}
		r.fail(v.field("limits"), LogsTooLong, itoa(int64(units)))
	}
}
