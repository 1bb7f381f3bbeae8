package policy

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// maxBucketBytes is the most that the host copies at a time for one request.
const maxBucketBytes = 16 << 10

// leastSlots is how many keys share a bucket at least.
const leastSlots = 4

// checkRules checks what no rule can say alone.
func (r *reader) checkRules(v value, p *Policy) {
	if len(p.Rules) == 0 && len(r.errs) == 0 {
		r.warn(value{node: v.node, at: v.at.field("rules")}, "there is none: every request is allowed")
	}
	byName := make(map[string]int, len(p.Rules))
	byCounter := make(map[string]int, len(p.Rules))
	for i := range p.Rules {
		rule, at := &p.Rules[i], r.rules[i]
		if first, found := byName[rule.Name]; found && rule.Name != "" {
			r.fail(fieldAt(at.value, "name"), quote(rule.Name)+" is the name of "+r.rules[first].at.String()+" too: names of rules must differ")
		} else {
			byName[rule.Name] = i
		}
		if !at.sound {
			continue
		}
		if first, found := byCounter[rule.Counter]; found {
			r.sameCounter(at.value, rule, r.rules[first].at.String(), &p.Rules[first])
		} else {
			byCounter[rule.Counter] = i
		}
	}
	if len(r.errs)+r.dropped > 0 {
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
			r.fitsBucket(r.rules[i].value, &p.Rules[i])
		}
	}
	if len(r.errs) > 0 {
		return
	}
	r.managed(p)
	if m := p.Memory(); m.Bytes > warnBytes {
		r.warn(fieldAt(v, "rules"), m.warning())
	}
}

// sameCounter refuses a rule that shares a counter whose records it could not
// read: both must agree on keys, windows and capacity. Limits may differ.
func (r *reader) sameCounter(v value, rule *Rule, firstPath string, first *Rule) {
	shares := "shares counter " + quote(rule.Counter) + " with " + firstPath + ": "
	if rule.KeyDefinition() != first.KeyDefinition() {
		r.fail(fieldAt(v, "key"), shares+"their keys must be the same")
	}
	if !sameWindows(rule.Limits, first.Limits) {
		r.fail(fieldAt(v, "limits"), shares+"their windows (algorithm, per, offset, jitter, elastic) must be the same")
	}
	if rule.Capacity != first.Capacity {
		r.fail(fieldAt(v, "capacity"), shares+"their capacities must be the same, not "+itoa(int64(rule.Capacity))+" and "+itoa(int64(first.Capacity)))
	}
}

// setUnits makes each log of the rule remember as much as any key may use.
func (r *Rule) setUnits() {
	for i := range r.Limits {
		if r.Limits[i].Algorithm != limit.SlidingWindowLog {
			continue
		}
		most := r.Limits[i].Limit
		for j := range r.Overrides {
			if l := r.Overrides[j].Limits; i < len(l) && !l[i].Unlimited {
				most = max(most, l[i].Limit)
			}
		}
		r.remember(i, uint16(min(most, limit.MaxLog)))
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

// fitsBucket bounds what one request makes the host copy: a single log fits,
// several long ones do not.
func (r *reader) fitsBucket(v value, rule *Rule) {
	layout := state.NewLayout(rule.Windows(), leastSlots)
	if size := layout.ValueBytes(); size > maxBucketBytes {
		units := 0
		for i := range rule.Limits {
			units += int(rule.Limits[i].Units)
		}
		r.fail(fieldAt(v, "limits"), "the logs remember "+itoa(int64(units))+" requests a key together (overrides and rules of the same counter included), more than a counter has room for: one log of "+
			itoa(limit.MaxLog)+" fits; use sliding_window_counter for the larger")
	}
}

// sameWindows compares as sets: within a rule all windows differ.
func sameWindows(a, b []Limit) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		same := func(l Limit) bool { return l.Same(a[i].Window) }
		if !slices.ContainsFunc(b, same) {
			return false
		}
	}
	return true
}

// has reports whether the object names the field.
func has(v value, name string) bool {
	return slices.ContainsFunc(v.node.Fields, func(f Field) bool { return f.Name == name })
}

// fieldAt is the place of a field, or of its object where the field is absent.
func fieldAt(v value, name string) value {
	at := value{node: v.node, at: v.at.field(name)}
	for _, f := range v.node.Fields {
		if f.Name == name {
			at.node = f.Value
			break
		}
	}
	return at
}
