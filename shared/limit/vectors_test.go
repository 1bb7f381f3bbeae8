package limit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// notRun are the cases that follow the rules of another library, and how these
// differ from ours.
var notRun = map[string]string{
	"F20":  "gubernator's DRAIN_OVER_LIMIT: a denied hit takes what is left; here a denied hit writes nothing, or with count_denied its whole cost",
	"S02x": "a closed interval: a hit counts for W inclusive; here windows are half-open, which S02 checks",
	"C06x": "the previous period's weighted count is not rounded down; here it is, as in limits and at Cloudflare, which C06 checks",
}

// expectedRuns is how many cases of each algorithm are run.
var expectedRuns = map[string]int{
	"fixed_aligned": 7, "fixed_perkey": 10, "layered_aligned": 4, "sliding_log": 4, "sliding_counter": 6,
	"token_bucket": 15, "layered_token": 2, "gcra": 2, "leaky_meter": 3,
}

// vector is a case of testdata/vectors.json: a window definition, a sequence of
// operations on one key, and the decision that each must get. Times are milliseconds, or
// nanoseconds where Cfg.Unit is ns.
//
// Profile core is what this project decides; compat:… and variant:… are what another
// library, the Source, decides differently. Algo fixed_aligned is fixed_window,
// fixed_perkey fixed_window_per_key; layered_aligned and layered_token have a list of
// windows as their Cfg. gcra is a token bucket that gains one token in each period,
// leaky_meter one whose tokens are what leaks out.
type vector struct {
	ID      string          `json:"id"`
	Algo    string          `json:"algo"`
	Profile string          `json:"profile"`
	Source  string          `json:"src"`
	Cfg     json.RawMessage `json:"cfg"`
	Steps   []vectorStep    `json:"steps"`
}

// vectorConfig has the fields of all algorithms. Before the first step a key has Initial
// tokens at Start, or Prev units of the previous period and Cur of the current one, which
// begins at Bucket.
type vectorConfig struct {
	Limit          uint32
	Window, Offset int64

	Capacity, Refill, Leak, Burst uint32
	Per, Period                   int64
	Initial                       *uint32
	Start                         int64

	Prev, Cur uint32
	Bucket    *int64
	Unit      string
}

// vectorStep is one hit or peek at T; of Kind seq N hits of cost 1, one every Step, of
// which exactly Miss are denied. What is given is checked. Retry is the wait from T,
// "never" for a hit that can never pass.
type vectorStep struct {
	Kind                     string
	T, Step                  int64
	N, Miss                  int
	Op                       string
	Cost                     uint32
	Allow                    *bool
	Used, Retry              any
	Expires, Reset           *int64
	Remaining, Level         *uint32
	Weighted                 *float64
	Note, Why, Every, Repeat string
}

func readVectors(t *testing.T) []vector {
	b, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var all []vector
	require.NoError(t, d.Decode(&all), "a field that no test checks")
	return all
}

// record is one key's record as plain values. unit is the unit of the case's times
// in nanoseconds.
type record struct {
	windows []Window
	usage   []Usage
	last    int64
	unit    int64
}

// start returns the record that a case starts with.
func (v *vector) start(t *testing.T) *record {
	var list []vectorConfig
	if v.Cfg[0] == '[' {
		require.NoError(t, json.Unmarshal(v.Cfg, &list), v.ID)
	} else {
		d := json.NewDecoder(bytes.NewReader(v.Cfg))
		d.DisallowUnknownFields()
		list = make([]vectorConfig, 1)
		require.NoError(t, d.Decode(&list[0]), v.ID)
	}
	r := &record{unit: ms}
	for _, c := range list {
		if c.Unit == "ns" {
			r.unit = 1
		}
		w := c.definition(t, v.Algo, r.unit)
		u := Usage{}
		switch {
		case c.Initial != nil:
			u, r.last = w.Set(c.Start*r.unit, c.Capacity-*c.Initial), c.Start*r.unit
		case c.Bucket != nil:
			u, r.last = Usage{Used: c.Cur, Prev: c.Prev}, *c.Bucket*r.unit
		}
		r.windows, r.usage = append(r.windows, w), append(r.usage, u)
	}
	return r
}

func (c *vectorConfig) definition(t *testing.T, algo string, unit int64) Window {
	switch algo {
	case "fixed_aligned", "layered_aligned":
		return aligned(c.Limit, c.Window*unit, c.Offset*unit)
	case "fixed_perkey":
		return perKey(c.Limit, c.Window*unit)
	case "sliding_log":
		return Window{Algorithm: SlidingWindowLog, Limit: c.Limit, PeriodNs: c.Window * unit, Units: uint16(c.Limit)}
	case "sliding_counter":
		return Window{Algorithm: SlidingWindowCounter, Limit: c.Limit, PeriodNs: c.Window * unit}
	case "token_bucket", "layered_token":
		return Window{Algorithm: TokenBucket, Limit: c.Refill, PeriodNs: c.Per * unit, Burst: c.Capacity}
	case "gcra": // one token each period
		return Window{Algorithm: TokenBucket, Limit: 1, PeriodNs: c.Period * unit, Burst: c.Burst}
	case "leaky_meter": // what leaks out is what a bucket of tokens gains
		return Window{Algorithm: TokenBucket, Limit: c.Leak, PeriodNs: c.Per * unit, Burst: c.Capacity}
	}
	require.Fail(t, "unknown algorithm", algo)
	return Window{}
}

func (r *record) step(t *testing.T, id string, s vectorStep) (allowed bool) {
	name := fmt.Sprintf("%s at %d", id, s.T)
	now := max(s.T*r.unit, r.last)
	pass := now
	for i, w := range r.windows {
		r.usage[i] = rolled(w, r.usage[i], r.last, now)
		if at := w.Check(&r.usage[i], now, s.Cost); at == Never || pass == Never {
			pass = Never
		} else {
			pass = max(pass, at)
		}
	}
	r.last = now
	if s.Op == "hit" && pass == now && s.Cost > 0 {
		for i, w := range r.windows {
			r.usage[i] = added(w, r.usage[i], now, s.Cost)
		}
	}
	if s.Allow != nil {
		require.Equal(t, *s.Allow, pass == now, name)
	}
	switch retry := s.Retry.(type) {
	case string:
		require.Equal(t, "never", retry, name)
		require.Equal(t, Never, pass, name)
	case float64:
		require.Equal(t, (s.T+int64(retry))*r.unit, pass, name)
	}
	r.require(t, name, s, now)
	return pass == now
}

// require checks what a step says of the state after it.
func (r *record) require(t *testing.T, name string, s vectorStep, now int64) {
	used, remaining := make([]any, len(r.windows)), uint32(1<<32-1)
	for i, w := range r.windows {
		u := r.usage[i]
		used[i] = float64(w.Count(&u, now))
		remaining = min(remaining, w.Remaining(&u, now))
		if s.Expires != nil {
			require.Equal(t, *s.Expires*r.unit, w.Expiry(&u, now), name)
		}
		if s.Reset != nil {
			require.Equal(t, *s.Reset*r.unit, w.Reset(&u, now)-now, name)
		}
		if s.Level != nil {
			require.Equal(t, *s.Level, w.Count(&u, now), name)
		}
		if s.Weighted != nil {
			require.InDelta(t, *s.Weighted-0.5, w.Count(&u, now), 0, name)
		}
	}
	if s.Remaining != nil {
		require.Equal(t, *s.Remaining, remaining, name)
	}
	switch want := s.Used.(type) {
	case []any:
		require.Equal(t, want, used, name)
	case float64:
		require.InDelta(t, want, used[0], 0, name)
	}
}

func TestVectors(t *testing.T) {
	run, left := map[string]int{}, map[string]string{}
	for _, v := range readVectors(t) {
		if v.Profile != "core" {
			left[v.ID] = notRun[v.ID]
			require.NotEmpty(t, left[v.ID], "%s (%s): neither run nor listed", v.ID, v.Profile)
			continue
		}
		run[v.Algo]++
		t.Run(v.ID, func(t *testing.T) {
			r := v.start(t)
			for _, s := range v.Steps {
				if s.Kind != "seq" {
					require.Contains(t, []string{"hit", "peek"}, s.Op)
					r.step(t, v.ID, s)
					continue
				}
				missed := 0
				for i := range s.N {
					if !r.step(t, v.ID, vectorStep{T: s.T + int64(i)*s.Step, Op: "hit", Cost: 1}) {
						missed++
					}
				}
				require.Equal(t, s.Miss, missed)
			}
		})
	}
	require.Equal(t, expectedRuns, run)
	require.Equal(t, notRun, left)
}
