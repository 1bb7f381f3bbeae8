package limit

import (
	"cmp"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	ms     = int64(1_000_000)
	second = 1000 * ms
	day    = 86_400 * second
)

func aligned(units uint32, period, offset int64) Window {
	return Window{Algorithm: FixedWindow, Limit: units, PeriodNs: period, OffsetNs: offset}
}

func perKey(units uint32, period int64) Window {
	return Window{Algorithm: FixedWindowPerKey, Limit: units, PeriodNs: period}
}

func TestSame(t *testing.T) {
	w := aligned(5, second, 3)
	for name, c := range map[string]struct {
		other Window
		same  bool
	}{
		"itself":        {w, true},
		"another limit": {aligned(6, second, 3), true},
		"another W":     {aligned(5, 2*second, 3), false},
		"another shift": {aligned(5, second, 4), false},
		"another kind":  {Window{Algorithm: FixedWindowPerKey, Limit: 5, PeriodNs: second, OffsetNs: 3}, false},
	} {
		require.Equal(t, c.same, w.Same(c.other), name)
	}
}

func TestCompareOrdersIdentities(t *testing.T) {
	ordered := []Window{
		aligned(9, ms, 0), aligned(1, ms, 1), perKey(5, ms),
		aligned(0, second, 0), perKey(0, second), aligned(3, day, 4*3600*second),
	}
	for i, w := range ordered {
		for j, v := range ordered {
			require.Equal(t, cmp.Compare(i, j), w.Compare(v), "%d %d", i, j)
		}
	}
	require.Zero(t, aligned(1, ms, 0).Compare(aligned(2, ms, 0)), "the limit is no part of the identity")
}

func TestStartEnd(t *testing.T) {
	for name, c := range map[string]struct {
		period, offset, now, start int64
	}{
		"epoch":                           {second, 0, 0, 0},
		"inside":                          {second, 0, 1_999_999_999, second},
		"the start belongs to its window": {second, 0, 2 * second, 2 * second},
		"the end belongs to the next":     {second, 0, 3*second - 1, 2 * second},
		"before the offset":               {10 * second, 4 * second, 3 * second, -6 * second},
		"one before the offset":           {10 * second, 4 * second, 4*second - 1, -6 * second},
		"at the offset":                   {10 * second, 4 * second, 4 * second, 4 * second},
		"after the offset":                {10 * second, 4 * second, 13 * second, 4 * second},
		"before the epoch":                {second, 0, -1, -second},
		"at minus one window":             {second, 0, -second, -second},
		// 1970-01-05 was the first Monday: 7d with an offset of 4d.
		"weeks from Monday":       {7 * day, 4 * day, 1_704_067_200 * second, 1_704_067_200 * second},
		"a Sunday night":          {7 * day, 4 * day, 1_704_067_200*second - 1, 1_704_067_200*second - 7*day},
		"shortest":                {MinPeriodNs, 0, 5*ms + 999_999, 5 * ms},
		"longest":                 {MaxPeriodNs, 0, MaxPeriodNs - 1, 0},
		"longest, largest offset": {MaxPeriodNs, MaxPeriodNs - 1, 0, -1},
	} {
		w := aligned(1, c.period, c.offset)
		require.Equal(t, c.start, w.start(c.now), name)
		require.Equal(t, c.start+c.period, w.End(c.now), name)
	}
}

func TestRoll(t *testing.T) {
	a, k := aligned(5, 10*ms, 3*ms), perKey(5, 10*ms)
	open := Usage{Used: 4, EndNs: 50 * ms}
	slides := Usage{Used: 4, EndNs: 50 * ms, Slides: true}
	for name, c := range map[string]struct {
		w         Window
		u         Usage
		last, now int64
		want      Usage
	}{
		"aligned, same instant":        {a, Usage{Used: 4}, 40 * ms, 40 * ms, Usage{Used: 4}},
		"aligned, last ns":             {a, Usage{Used: 4}, 40 * ms, 43*ms - 1, Usage{Used: 4}},
		"aligned, end":                 {a, Usage{Used: 4}, 40 * ms, 43 * ms, Usage{}},
		"aligned, written at start":    {a, Usage{Used: 4}, 43 * ms, 53*ms - 1, Usage{Used: 4}},
		"aligned, before the offset":   {a, Usage{Used: 4}, 1 * ms, 3*ms - 1, Usage{Used: 4}},
		"aligned, over the offset":     {a, Usage{Used: 4}, 1 * ms, 3 * ms, Usage{}},
		"aligned, many windows later":  {a, Usage{Used: 4}, 40 * ms, day, Usage{}},
		"per key, last ns":             {k, open, 40 * ms, 50*ms - 1, open},
		"per key, end":                 {k, open, 40 * ms, 50 * ms, Usage{}},
		"per key, sliding, last ns":    {k, slides, 40 * ms, 50*ms - 1, slides},
		"per key, sliding, end":        {k, slides, 40 * ms, 50 * ms, Usage{}},
		"per key, none open":           {k, Usage{}, 40 * ms, 40 * ms, Usage{}},
		"aligned, nothing, same place": {a, Usage{}, 40 * ms, 40 * ms, Usage{}},
	} {
		require.Equal(t, c.want, rolled(c.w, c.u, c.last, c.now), name)
	}
}

func TestCheck(t *testing.T) {
	now := 41 * ms
	a := func(units uint32) Window { return aligned(units, 10*ms, 0) }
	k := func(units uint32) Window { return perKey(units, 10*ms) }
	for name, c := range map[string]struct {
		w    Window
		u    Usage
		cost uint32
		want int64
	}{
		"fits":                        {a(5), Usage{Used: 4}, 1, now},
		"aligned, one too many":       {a(5), Usage{Used: 5}, 1, 50 * ms},
		"aligned, cost too large now": {a(5), Usage{Used: 3}, 3, 50 * ms},
		"cost equals limit":           {a(5), Usage{}, 5, now},
		"cost above limit":            {a(5), Usage{}, 6, Never},
		"limit 0":                     {a(0), Usage{}, 1, Never},
		"limit 0, cost 0":             {a(0), Usage{}, 0, Never},
		"cost 0":                      {a(5), Usage{Used: 5}, 0, now},
		"cost 0 above a lowered one":  {a(5), Usage{Used: 6}, 0, 50 * ms},
		"above a lowered limit":       {a(5), Usage{Used: 9}, 1, 50 * ms},
		"largest":                     {a(math.MaxUint32), Usage{Used: math.MaxUint32 - 1}, 1, now},
		"largest, full":               {a(math.MaxUint32), Usage{Used: math.MaxUint32}, 1, 50 * ms},
		"largest cost":                {a(math.MaxUint32), Usage{}, math.MaxUint32, now},
		"largest cost, one used":      {a(math.MaxUint32), Usage{Used: 1}, math.MaxUint32, 50 * ms},
		"per key, none open":          {k(5), Usage{}, 5, now},
		"per key, full":               {k(5), Usage{Used: 5, EndNs: 47 * ms}, 1, 47 * ms},
		"per key, never":              {k(5), Usage{Used: 5, EndNs: 47 * ms}, 6, Never},
		"per key, limit 0":            {k(0), Usage{}, 1, Never},
	} {
		require.Equal(t, c.want, c.w.Check(&c.u, now, c.cost), name)
	}
}
