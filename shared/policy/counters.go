package policy

import "slices"

// checkRules checks what no rule can say alone.
func (r *reader) checkRules(v value, p *Policy) {
	if len(p.Rules) == 0 && len(r.errs) == 0 {
		r.warn(value{node: v.node, path: "rules"}, "there is none: every request is allowed")
	}
	byName := make(map[string]int, len(p.Rules))
	byCounter := make(map[string]int, len(p.Rules))
	for i := range p.Rules {
		rule, at := &p.Rules[i], r.rules[i]
		if first, found := byName[rule.Name]; found && rule.Name != "" {
			r.fail(fieldAt(at.value, "name"), quote(rule.Name)+" is the name of "+r.rules[first].path+" too: names of rules must differ")
		} else {
			byName[rule.Name] = i
		}
		if !at.sound {
			continue
		}
		if first, found := byCounter[rule.Counter]; found {
			r.sameCounter(at.value, rule, r.rules[first].path, &p.Rules[first])
		} else {
			byCounter[rule.Counter] = i
		}
	}
	if len(r.errs) > 0 {
		return
	}
	if m := p.Memory(); m.Bytes > warnBytes {
		r.warn(value{node: v.node, path: "rules"}, "counters for "+itoa(int64(m.Keys))+" live keys take up to "+
			itoa(int64(m.Bytes>>20))+" MiB in each Envoy: lower capacity if fewer keys are live at a time")
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
		r.fail(fieldAt(v, "limits"), shares+"their windows (algorithm, per, offset) must be the same")
	}
	if rule.Capacity != first.Capacity {
		r.fail(fieldAt(v, "capacity"), shares+"their capacities must be the same, not "+itoa(int64(rule.Capacity))+" and "+itoa(int64(first.Capacity)))
	}
}

// sameWindows compares as sets: within a rule all windows differ.
func sameWindows(a, b []Limit) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		same := func(l Limit) bool { return sameWindow(l.Window, a[i].Window) }
		if !slices.ContainsFunc(b, same) {
			return false
		}
	}
	return true
}

// fieldAt is the place of a field, or of its object where the field is absent.
func fieldAt(v value, name string) value {
	at := value{node: v.node, path: member(v.path, name)}
	for _, f := range v.node.Fields {
		if f.Name == name {
			at.node = f.Value
			break
		}
	}
	return at
}
