package keyed

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// refusedBuilder is a builder that Build refuses, and what its error says.
type refusedBuilder struct {
	name string
	b    *Builder
	want string
}

func refusedBuilders() []refusedBuilder {
	seventeen := New()
	for i := range 17 {
		seventeen.Window(time.Duration(i+1)*time.Second, 1)
	}
	day := 24 * time.Hour
	return []refusedBuilder{
		{"no window", New(), "build limiter: there is no window: add one, such as Window(time.Minute, 10)"},
		{"too many windows", seventeen, "there are 17 windows: a limiter has at most 16"},
		{"too short", New().Window(time.Millisecond-1, 1),
			"window 0 (Window of 999.999µs): its length must be 1ms to 366 days"},
		{"too long", New().WindowPerKey(366*day+1, 1),
			"window 0 (WindowPerKey of 8784h0m0.000000001s): its length must be 1ms to 366 days"},
		{"negative", New().TokenBucket(-time.Second, 1), "its length must be 1ms to 366 days"},
		{"long log", New().SlidingLog(time.Second, 513),
			"a sliding log of 513 units: it has at most 512, so use SlidingCounter for more"},
		{"the same twice", New().Window(time.Second, 1).Window(time.Second, 2),
			"window 1 (Window of 1s): is the same window as window 0: keep the one with the smaller limit"},
		{"buckets of one period", New().TokenBucket(time.Second, 1).TokenBucket(time.Second, 1, Burst(5)),
			"is the same window as window 0"},
		{"one name twice", New().Window(time.Second, 1, Name("a")).Window(time.Minute, 2, Name("a")),
			`has the name of window 0, "a": names must differ`},
		{"a number as name", New().Window(time.Second, 1, Name("7")),
			`the name "7": it needs a character that is not a digit, because a number is an index`},
		{"no name", New().Window(time.Second, 1, Name("")), `the name "": it needs a character`},
		{"offset too large", New().Window(time.Second, 1, Offset(time.Second)),
			"an offset of 1s: it must be at least 0 and less than the window's length"},
		{"offset below zero", New().Window(time.Second, 1, Offset(-1)), "an offset of -1ns: it must be"},
		{"offset per key", New().WindowPerKey(time.Second, 1, Offset(0)),
			"Offset belongs to an aligned window: use Window or drop it"},
		{"jitter 0", New().Window(time.Second, 1, Jitter(0)), "a jitter of 0 percent: it must be 1 to 100"},
		{"jitter 356", New().Window(time.Second, 1, Jitter(356)), "a jitter of 356 percent: it must be 1 to 100"},
		{"jitter of a counter", New().SlidingCounter(time.Second, 1, Jitter(5)), "Jitter belongs to an aligned window"},
		{"elastic grid", New().Window(time.Second, 1, Elastic()),
			"Elastic belongs to a window per key: use WindowPerKey or drop it"},
		{"burst of a window", New().Window(time.Second, 1, Burst(5)),
			"Burst belongs to a token bucket: use TokenBucket or drop it"},
		{"burst 0", New().TokenBucket(time.Second, 1, Burst(0)), "a burst of 0 tokens: it must be at least 1"},
		{"denied tokens", New().TokenBucket(time.Second, 1).CountDenied(),
			"a token bucket cannot count denied hits: drop CountDenied or the bucket"},
		{"capacity 0", New().Window(time.Second, 1).Capacity(0), "a capacity of 0 keys: it must be 1 to 16777216"},
		{"capacity too large", New().Window(time.Second, 1).Capacity(1<<24 + 1), "a capacity of 16777217 keys"},
		{"on full", New().Window(time.Second, 1).OnFull(3), "OnFull(3): it must be Inherit, Deny or Allow"},
		{"clock", New().Window(time.Second, 1).Clock(func() time.Time { return time.Time{} }),
			"the clock says 0001-01-01T00:00:00Z: it must be from 1970 to 2249, " +
				"so start a test's clock at time.Unix(0, 0) or later"},
	}
}

// refusedMonths are refused for their months or how these are shifted.
func refusedMonths() []refusedBuilder {
	day := 24 * time.Hour
	return []refusedBuilder{
		{"five months", New().Months(5, 1), "window 0 (Months of 5): it must be 1, 2, 3, 4, 6 or 12 months"},
		{"no month", New().Months(0, 1), "window 0 (Months of 0): it must be 1, 2, 3, 4, 6 or 12 months"},
		{"many months", New().Months(500, 1), "window 0 (Months of 500): it must be 1, 2, 3, 4, 6 or 12 months"},
		{"more months than 2⁶³ ns", New().Months(math.MaxInt, 1), "it must be 1, 2, 3, 4, 6 or 12 months"},
		{"less than no month", New().Months(-1, 1), "window 0 (Months of -1): it must be 1, 2, 3, 4, 6 or 12 months"},
		{"28 days into a month", New().Months(1, 1, Offset(28*day)),
			"an offset of 672h0m0s: it must be at least 0 and less than 28 days"},
		{"before a month", New().Months(1, 1, Offset(-1)), "an offset of -1ns: it must be"},
		{"jitter of months", New().Months(1, 1, Jitter(5)), "Jitter belongs to an aligned window: use Window or drop it"},
		{"too far east", New().Months(1, 1, UTCOffset(14*time.Hour+time.Minute)),
			"a UTC offset of 14h1m0s: it must be whole minutes from -12h to 14h"},
		{"too far west", New().Months(1, 1, UTCOffset(-13*time.Hour)), "a UTC offset of -13h0m0s: it must be whole minutes"},
		{"parts of a minute", New().Months(1, 1, UTCOffset(time.Second)), "a UTC offset of 1s: it must be whole minutes"},
		{"UTC offset of a day", New().Window(day, 1, UTCOffset(0)), "UTCOffset belongs to months: use Months or drop it"},
		{"one shift twice", New().Months(1, 1, UTCOffset(-time.Hour)).Months(1, 2, Offset(time.Hour)),
			"is the same window as window 0"},
	}
}

// refusedBlocks are refused for their block.
func refusedBlocks() []refusedBuilder {
	month := 30 * 24 * time.Hour
	return []refusedBuilder{
		{"no time blocked", New().Window(time.Second, 1).Block(0), "a block of 0s: it must be 1ms to 30 days"},
		{"blocked too long", New().Window(time.Second, 1).Block(month + 1),
			"a block of 720h0m0.000000001s: it must be 1ms to 30 days"},
		{"no block", New().Window(time.Second, 1).Prolong(),
			"there is no block to prolong: add Block(time.Hour) or drop Prolong"},
		{"a block too many", sixteen().Block(time.Hour), "there are 16 windows: a limiter with Block has at most 15"},
	}
}

func TestBuildRefuses(t *testing.T) {
	for _, c := range slices.Concat(refusedBuilders(), refusedMonths(), refusedBlocks()) {
		t.Run(c.name, func(t *testing.T) {
			l, err := c.b.Build()
			require.ErrorContains(t, err, c.want)
			require.Nil(t, l)
		})
	}

	_, err := New().Window(0, 1).Capacity(0).Build()
	require.EqualError(t, err, "build limiter: window 0 (Window of 0s): its length must be 1ms to 366 days; "+
		"a capacity of 0 keys: it must be 1 to 16777216")
	_, err = New().Months(0, 1, Offset(24*time.Hour)).Build()
	require.EqualError(t, err, "build limiter: window 0 (Months of 0): it must be 1, 2, 3, 4, 6 or 12 months",
		"the offset fits into any month")
}

// sixteen is a builder of as many windows as a limiter has at most.
func sixteen() *Builder {
	b := New()
	for i := range 16 {
		b.Window(time.Duration(16-i)*time.Second, uint32(i+1))
	}
	return b
}

func TestBuildAccepts(t *testing.T) {
	for name, b := range map[string]*Builder{
		"shortest":               New().Window(time.Millisecond, 1),
		"longest, highest":       New().TokenBucket(366*24*time.Hour, 1<<32-1, Burst(1<<32-1)),
		"an option that is none": New().Window(time.Second, 1, WindowOption{}),
		"limit 0":                New().Window(time.Second, 0).SlidingLog(time.Second, 0).TokenBucket(time.Second, 0),
		"longest log":            New().SlidingLog(time.Second, 512),
		"sixteen":                sixteen(),
		"one period, all kinds": New().Window(time.Second, 1).WindowPerKey(time.Second, 1).
			WindowPerKey(time.Second, 1, Elastic()).SlidingLog(time.Second, 1).SlidingCounter(time.Second, 1).
			TokenBucket(time.Second, 1),
		"one period, two offsets": New().Window(time.Second, 1).Window(time.Second, 1, Offset(time.Millisecond)),
		"capacity 1":              New().Window(time.Second, 1).Capacity(1),
		"months": New().Months(1, 1).Months(12, 9, Offset(28*24*time.Hour-1), UTCOffset(-12*time.Hour)).
			Months(12, 9, UTCOffset(14*time.Hour)),
		"a block, prolonged": New().Window(time.Second, 1).Block(30 * 24 * time.Hour).Prolong(),
		"burst below tokens": New().TokenBucket(time.Second, 10, Burst(1)),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := b.Build()
			require.NoError(t, err)
			l.Hit("a")
			require.LessOrEqual(t, l.Stats().Keys, uint64(1))
		})
	}
}

func TestABuilderCanBeBuiltAgain(t *testing.T) {
	b := New().Window(time.Hour, 1)
	one, err := b.Build()
	require.NoError(t, err)
	two, err := b.Window(time.Minute, 5).Build()
	require.NoError(t, err)
	require.True(t, one.Hit("a").Allowed)
	require.True(t, two.Hit("a").Allowed, "limiters share no counts")
	require.Len(t, one.Detail("a", nil), 1)
	require.Len(t, two.Detail("a", nil), 2)
}
