package simulate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// notRun are the cases that follow the rules of another library, and how these
// differ from ours.
var notRun = map[string]string{
	"F20":  "gubernator's DRAIN_OVER_LIMIT: a denied hit takes what is left; here a denied hit writes nothing, or with count_denied its whole cost",
	"S02x": "a closed interval: a hit counts for W inclusive; here windows are half-open, which S02 checks",
	"C06x": "the previous period's weighted count is not rounded down; here it is, as in limits and at Cloudflare, which C06 checks",
}

// vector is a case of testdata/vectors.json, collected from the tests of other rate limiters: a
// window definition, a sequence of operations on one key, and the decision that each must get.
// Times are milliseconds, or nanoseconds where Cfg.Unit is ns.
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

// vectorStep is one hit or peek at T; of Kind seq N hits of cost 1, one every Step, of which
// exactly Miss are denied. What is given is checked. Retry is the wait from T, "never" for a hit
// that can never pass.
type vectorStep struct {
	T         int64           `json:"t"`
	Op        string          `json:"op"`
	Cost      *uint32         `json:"cost"`
	Allow     *bool           `json:"allow"`
	Used      json.RawMessage `json:"used"`
	Remaining *uint32         `json:"remaining"`
	Retry     json.RawMessage `json:"retry"`
	Expires   *int64          `json:"expires"`
	Reset     *int64          `json:"reset"`
	Level     *uint32         `json:"level"`
	Weighted  *float64        `json:"weighted"`

	Kind    string `json:"kind"`
	N, Step int
	Miss    int `json:"miss"`
	// words for the reader
	Note, Why, Every, Repeat string
}

// vectorWindow has the fields of all algorithms.
type vectorWindow struct {
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

// algorithms by their names in the cases.
var algorithms = map[string]string{
	"fixed_aligned": "fixed_window", "layered_aligned": "fixed_window", "fixed_perkey": "fixed_window_per_key",
	"sliding_log": "sliding_window_log", "sliding_counter": "sliding_window_counter",
	"token_bucket": "token_bucket", "layered_token": "token_bucket", "gcra": "token_bucket", "leaky_meter": "token_bucket",
}

// Every case of the core rules runs in the compiled filter; a state that it
// starts from is set by operations. Times that count in nanoseconds are taken
// for milliseconds, the shortest window: only token buckets have them, and a
// bucket does not change when all its times are a million times as long.
func TestVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var vectors []vector
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&vectors), "a field that nobody checks")
	ran, left := map[string]int{}, map[string]string{}
	for _, v := range vectors {
		if v.Profile != "core" {
			left[v.ID] = notRun[v.ID]
			continue
		}
		require.NotEmpty(t, algorithms[v.Algo], v.ID)
		ran[v.Algo]++
		if ran[v.Algo] > 1 && buildtest.Race {
			continue // one goroutine runs a case
		}
		t.Run(v.ID, func(t *testing.T) { v.run(t) })
	}
	require.Equal(t, map[string]int{
		"fixed_aligned": 7, "fixed_perkey": 10, "layered_aligned": 4, "sliding_log": 4, "sliding_counter": 6,
		"token_bucket": 15, "layered_token": 2, "gcra": 2, "leaky_meter": 3,
	}, ran)
	require.Equal(t, notRun, left)
}

func (v *vector) windows(t *testing.T) (windows []vectorWindow) {
	text := v.Cfg
	if text[0] != '[' {
		text = []byte("[" + string(text) + "]")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&windows), v.ID)
	return windows
}

func (v *vector) policy(t *testing.T) string {
	var limits []string
	for _, w := range v.windows(t) {
		limits = append(limits, w.limit(v.Algo))
	}
	return fmt.Sprintf(`
version: 1
rules:
  - name: r
    algorithm: %s
    cost: {header: x-cost, min: 0, max: 4294967295}
    limits: [%s]
`, algorithms[v.Algo], strings.Join(limits, ", "))
}

func (w *vectorWindow) limit(algo string) string {
	bucket := func(requests uint32, per int64, burst uint32) string {
		return fmt.Sprintf("{requests: %d, per: %dms, burst: %d}", requests, per, burst)
	}
	switch algo {
	case "token_bucket", "layered_token":
		return bucket(w.Refill, w.Per, w.Capacity)
	case "gcra": // one token each period
		return bucket(1, w.Period, w.Burst)
	case "leaky_meter": // what leaks out is what a bucket of tokens gains
		return bucket(w.Leak, w.Per, w.Capacity)
	}
	offset := ""
	if w.Offset != 0 {
		offset = fmt.Sprintf(", offset: %dms", w.Offset)
	}
	return fmt.Sprintf("{requests: %d, per: %dms%s}", w.Limit, w.Window, offset)
}

// initial returns the lines that make the state which the case starts from, and
// by how much its times move: the bucket before a sliding counter's first one
// must not lie before the epoch.
func (v *vector) initial(t *testing.T) (lines string, shift int64) {
	for i, w := range v.windows(t) {
		switch {
		case w.Initial != nil:
			lines += fmt.Sprintf(`{"at_ms":%d,"op":"set","rule":"r","n":%d,"window":"%d"}`+"\n", w.Start, w.Capacity-*w.Initial, i)
		case w.Bucket != nil:
			shift = w.Window
			lines += fmt.Sprintf(`{"at_ms":%d,"op":"set","rule":"r","n":%d}`+"\n", *w.Bucket, w.Prev) +
				fmt.Sprintf(`{"at_ms":%d,"op":"inc","rule":"r","n":%d}`+"\n", *w.Bucket+shift, w.Cur)
		}
	}
	return lines, shift
}

func (v *vector) run(t *testing.T) {
	if v.Steps[0].Kind == "seq" {
		v.runSequence(t)
		return
	}
	var in strings.Builder
	initial, shift := v.initial(t)
	in.WriteString(initial)
	for _, s := range v.Steps {
		if s.Op == "peek" {
			fmt.Fprintf(&in, `{"at_ms":%d,"op":"peek","rule":"r"}`+"\n", s.T+shift)
		} else {
			fmt.Fprintf(&in, `{"at_ms":%d,"headers":{"x-cost":"%d"}}`+"\n", s.T+shift, *s.Cost)
		}
	}
	out, err := run(t, v.policy(t), in.String(), 1)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")[strings.Count(initial, "\n"):]
	require.Len(t, lines, len(v.Steps))
	for i, s := range v.Steps {
		s.check(t, lines[i])
	}
}

func (s *vectorStep) check(t *testing.T, line string) {
	var got struct {
		Allowed bool
		Retry   *int64 `json:"retry_after_ms"`
		Rules   []struct {
			Remaining *uint32
			Windows   []struct {
				Used    uint32
				ResetMs int64 `json:"reset_ms"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(line), &got))
	if s.Allow != nil {
		require.Equal(t, *s.Allow, got.Allowed, line)
	}
	if s.Remaining != nil {
		require.Equal(t, *s.Remaining, *got.Rules[0].Remaining, line)
	}
	if s.Expires != nil {
		require.Equal(t, *s.Expires, s.T+got.Rules[0].Windows[0].ResetMs, line)
	}
	if s.Reset != nil {
		require.Equal(t, *s.Reset, got.Rules[0].Windows[0].ResetMs, line)
	}
	if s.Level != nil {
		require.Equal(t, *s.Level, got.Rules[0].Windows[0].Used, line)
	}
	if s.Weighted != nil { // what is left of the bucket before, without its fraction
		require.InDelta(t, *s.Weighted-0.5, got.Rules[0].Windows[0].Used, 0, line)
	}
	switch retry := string(s.Retry); retry {
	case "", "null":
	case `"never"`:
		require.EqualValues(t, -1, *got.Retry, line)
	default:
		require.Equal(t, retry, fmt.Sprint(*got.Retry), line)
	}
	if s.Used == nil {
		return
	}
	var used []uint32
	for _, w := range got.Rules[0].Windows {
		used = append(used, w.Used)
	}
	var want any = used
	if s.Used[0] != '[' {
		want = used[0]
	}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	require.JSONEq(t, string(s.Used), string(text), line)
}

// runSequence sends n hits, one every step, and counts the denied.
func (v *vector) runSequence(t *testing.T) {
	s := v.Steps[0]
	var in strings.Builder
	for i := range s.N {
		fmt.Fprintf(&in, `{"at_ms":%d}`+"\n", i*s.Step)
	}
	out, err := run(t, v.policy(t), in.String(), 1)
	require.NoError(t, err)
	require.Equal(t, s.Miss, strings.Count(out, `"status":429`))
	require.Equal(t, s.N, strings.Count(out, `"status":`))
}
