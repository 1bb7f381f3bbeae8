package policy

import (
	"errors"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Windows are the windows of the rule's limits, in their order.
func (r *Rule) Windows() []limit.Window { return windowsOf(r.Limits) }

// Windows are the windows of the override, parallel to the rule's; none where
// it is Unlimited.
func (o *Override) Windows() []limit.Window { return windowsOf(o.Limits) }

func windowsOf(limits []Limit) []limit.Window {
	list := make([]limit.Window, len(limits))
	for i := range limits {
		list[i] = limits[i].Window
	}
	return list
}

// LimitNamed is the index of the first limit with that name or index, -1 if there is
// none.
func (r *Rule) LimitNamed(text string) int {
	for i := range r.Limits {
		if r.Limits[i].Name == text || itoa(int64(i)) == text {
			return i
		}
	}
	return -1
}

// Bound is the limit of a request that says n.
func (f *RequestedLimit) Bound(n uint32) Requested {
	if n > f.Max {
		return Requested{f.Max, RequestedMax}
	}
	return Requested{n, RequestedNumber}
}

// ParseLimits reads the limits that a request would say, as people write them for operations:
// one for each limit of the rule that requests say, in their order, or none.
func (r *Rule) ParseLimits(list []Requested, texts []string) ([]Requested, error) {
	list = list[:0]
	if len(texts) == 0 {
		return list, nil
	}
	want := 0
	for i := range r.Limits {
		from := r.Limits[i].Requested
		if from == nil {
			list = append(list, Requested{})
			continue
		}
		if want++; want > len(texts) {
			continue
		}
		n, err := strconv.ParseUint(texts[want-1], 10, 32)
		if err != nil {
			return list[:0], errors.New("limit must be a whole number from 0 to 4294967295")
		}
		list = append(list, from.Bound(uint32(n)))
	}
	if want != len(texts) {
		return list[:0], errors.New("requests say " + strconv.Itoa(want) + " of the limits of rule " +
			strconv.Quote(r.Name) + ", not " + strconv.Itoa(len(texts)))
	}
	return list, nil
}

// Most is the largest limit that a request may say; without a RequestedLimit, the policy's.
func (l *Limit) Most() uint32 {
	if l.Requested != nil {
		return l.Requested.Max
	}
	return l.Limit
}

// same reports whether two limits have the same number for each request.
func (f *RequestedLimit) same(g *RequestedLimit) bool {
	if f == nil || g == nil {
		return f == g
	}
	return f.Default == g.Default && f.Max == g.Max &&
		slices.Equal(appendDefinitions(nil, []KeyPart{f.Part}), appendDefinitions(nil, []KeyPart{g.Part}))
}
