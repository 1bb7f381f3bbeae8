package simulate_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// vector is one case collected from the tests of other rate limiters.
type vector struct {
	ID      string          `json:"id"`
	Algo    string          `json:"algo"`
	Profile string          `json:"profile"`
	Cfg     json.RawMessage `json:"cfg"`
	Steps   []vectorStep    `json:"steps"`
}

type vectorStep struct {
	T         int64           `json:"t"`
	Op        string          `json:"op"`
	Cost      *uint32         `json:"cost"`
	Allow     *bool           `json:"allow"`
	Used      json.RawMessage `json:"used"`
	Remaining *uint32         `json:"remaining"`
	Retry     json.RawMessage `json:"retry"`
	Expires   *int64          `json:"expires"`

	Kind    string `json:"kind"`
	N, Step int
	Miss    int `json:"miss"`
}

type vectorWindow struct {
	Limit  uint32 `json:"limit"`
	Window int64  `json:"window"`
}

// algorithms are the ones the filter has; the cases of others wait for them.
var algorithms = map[string]string{
	"fixed_aligned": "fixed_window", "fixed_perkey": "fixed_window_per_key", "layered_aligned": "fixed_window",
}

func TestVectors(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(buildtest.Root(), "shared", "limit", "testdata", "vectors.json"))
	require.NoError(t, err)
	var vectors []vector
	require.NoError(t, json.Unmarshal(data, &vectors))
	ran := 0
	for _, v := range vectors {
		if algorithms[v.Algo] == "" || v.Profile != "core" {
			continue
		}
		ran++
		t.Run(v.ID, func(t *testing.T) { v.run(t) })
	}
	require.Equal(t, 21, ran, "cases of the algorithms that the filter has")
}

func (v *vector) policy(t *testing.T) string {
	var windows []vectorWindow
	if v.Cfg[0] == '[' {
		require.NoError(t, json.Unmarshal(v.Cfg, &windows))
	} else {
		windows = make([]vectorWindow, 1)
		require.NoError(t, json.Unmarshal(v.Cfg, &windows[0]))
	}
	var limits []string
	for _, w := range windows {
		limits = append(limits, fmt.Sprintf("{requests: %d, per: %dms}", w.Limit, w.Window))
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

func (v *vector) run(t *testing.T) {
	if v.Steps[0].Kind == "seq" {
		v.runSequence(t)
		return
	}
	var in strings.Builder
	for _, s := range v.Steps {
		if s.Op == "peek" {
			fmt.Fprintf(&in, `{"at_ms":%d,"op":"peek","rule":"r"}`+"\n", s.T)
		} else {
			fmt.Fprintf(&in, `{"at_ms":%d,"headers":{"x-cost":"%d"}}`+"\n", s.T, *s.Cost)
		}
	}
	out, err := run(t, v.policy(t), in.String(), 1)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
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
