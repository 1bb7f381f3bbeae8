package policy

import (
	"math"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// slotsObject is the item of "limits" of a rule with algorithm concurrency, where it is
// an object.
var slotsObject = newObject("slots", []field[Limit]{
	{"requests", required(integer(0, math.MaxUint32)), "", func(r *reader, v value, l *Limit) { l.Limit = uint32(r.integer(v)) }},
	{"name", name, "", func(r *reader, v value, l *Limit) { l.Name = r.windowName(v) }},
})

// slots reads how many requests may run at once: "10", 10 or {requests: 10}.
func (r *reader) slots(v value, out *Limit) {
	out.Algorithm = limit.Concurrency
	if v.Kind != Object {
		n, ok := v.Integer()
		if v.Kind == String {
			digits, rest := cutDigits(strings.TrimSpace(v.Text))
			n, ok = int64(min(decimal(digits), math.MaxInt64)), digits != "" && rest == ""
		}
		if out.Limit = uint32(n); !ok || n < 0 || n > math.MaxUint32 {
			r.fail(v, BadSlots)
		}
		return
	}
	ofWindow := false
	for i := range limitObject.Fields {
		name := limitObject.Fields[i].Name
		isOwn := func(f FieldSchema) bool { return f.Name == name }
		if v.has(name) && !slices.ContainsFunc(slotsObject.Fields, isOwn) {
			ofWindow = true
			r.fail(v.field(name), SlotsField)
		}
	}
	if !ofWindow {
		readObject(r, v, slotsObject, out)
	}
}

// holdSlots makes the rule's hold the period of its window.
func (r *Rule) holdSlots() {
	for i := range r.Limits {
		r.Limits[i].PeriodNs = r.HoldNs
	}
	for i := range r.Overrides {
		for j := range r.Overrides[i].Limits {
			r.Overrides[i].Limits[j].PeriodNs = r.HoldNs
		}
	}
}
