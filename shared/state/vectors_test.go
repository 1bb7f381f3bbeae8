package state

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// notYetStored are the vectors' names of algorithms that no record can hold.
var notYetStored = []string{
	"sliding_log", "sliding_counter", "token_bucket", "layered_token", "gcra", "leaky_meter",
}

type vectorWindow struct {
	Limit          uint32
	Window, Offset int64
}

type vectorStep struct {
	Kind        string
	T, Step     int64
	N, Miss     int
	Op          string
	Cost        uint32
	Allow       *bool
	Used, Retry any
	Expires     *int64
	Remaining   *uint32
}

type vector struct {
	ID, Algo, Profile string
	Cfg               json.RawMessage
	Steps             []vectorStep
}

// TestVectors runs the cases of shared/limit through a table.
func TestVectors(t *testing.T) {
	b, err := os.ReadFile("../limit/testdata/vectors.json")
	require.NoError(t, err)
	var all []vector
	require.NoError(t, json.Unmarshal(b, &all))
	run := 0
	for _, v := range all {
		if v.Profile != "core" || slices.Contains(notYetStored, v.Algo) {
			continue
		}
		require.Contains(t, []string{"fixed_aligned", "fixed_perkey", "layered_aligned"}, v.Algo, v.ID)
		run++
		t.Run(v.ID, func(t *testing.T) { runVector(t, &v) })
	}
	require.Equal(t, 21, run)
}

func runVector(t *testing.T, v *vector) {
	var list []vectorWindow
	if v.Algo == "layered_aligned" {
		require.NoError(t, json.Unmarshal(v.Cfg, &list))
	} else {
		list = make([]vectorWindow, 1)
		require.NoError(t, json.Unmarshal(v.Cfg, &list[0]))
	}
	var windows []limit.Window
	for _, c := range list {
		w := aligned(c.Limit, c.Window*ms, c.Offset*ms)
		if v.Algo == "fixed_perkey" {
			w.Algorithm = limit.FixedWindowPerKey
		}
		windows = append(windows, w)
	}
	table := configured(newMemory(), "o", 0, definition(v.ID, 4, windows...))
	for _, s := range v.Steps {
		if s.Kind != "seq" {
			runStep(t, table, s)
			continue
		}
		missed := 0
		for i := range s.N {
			if !hit(t, table, []byte("k"), (s.T+int64(i)*s.Step)*ms, 1) {
				missed++
			}
		}
		require.Equal(t, s.Miss, missed)
	}
}

func runStep(t *testing.T, table *Table, s vectorStep) {
	var e Entry
	windows := table.def.Windows
	require.Equal(t, OK, table.Read(&e, []byte("k"), s.T*ms))
	pass := table.Check(&e, windows, s.Cost)
	if s.Op == "hit" && pass == e.Now {
		require.Equal(t, OK, table.Commit(&e, windows, s.Cost, true))
		require.Equal(t, OK, table.Read(&e, []byte("k"), s.T*ms))
	}
	if s.Allow != nil {
		require.Equal(t, *s.Allow, pass == e.Now)
	}
	switch retry := s.Retry.(type) {
	case string:
		require.Equal(t, limit.Never, pass)
	case float64:
		require.Equal(t, (s.T+int64(retry))*ms, pass)
	}
	var counted []any
	for i, w := range windows {
		u := table.Usage(&e, i)
		counted = append(counted, float64(u.Used))
		if s.Remaining != nil {
			require.Equal(t, *s.Remaining, w.Remaining(u))
		}
		if s.Expires != nil {
			require.Equal(t, *s.Expires*ms, w.Reset(u, e.Now))
		}
	}
	switch want := s.Used.(type) {
	case []any:
		require.Equal(t, want, counted)
	case float64:
		require.Equal(t, want, counted[0])
	}
}

// TestStoredAlgorithms fails when a record learns to hold another algorithm:
// its vectors must be run then and leave notYetStored.
func TestStoredAlgorithms(t *testing.T) {
	var stored []limit.Algorithm
	for a := range 256 {
		if partBytes(limit.Algorithm(a)) != 0 {
			stored = append(stored, limit.Algorithm(a))
		}
	}
	require.Equal(t, []limit.Algorithm{limit.FixedWindow, limit.FixedWindowPerKey}, stored,
		"run the new one's vectors and take its name off notYetStored")
}
