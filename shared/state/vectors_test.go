package state

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// vectorWindow has the fields of all algorithms. All times count as milliseconds,
// because shorter periods are not allowed. The rules do not depend on the unit, so
// the decisions of a case in nanoseconds stay the same.
type vectorWindow struct {
	Limit          uint32
	Window, Offset int64

	Capacity, Refill, Leak, Burst uint32
	Per, Period                   int64
	Initial                       *uint32
	Start                         int64

	Prev, Cur uint32
	Bucket    *int64
}

type vectorStep struct {
	Kind             string
	T, Step          int64
	N, Miss          int
	Op               string
	Cost             uint32
	Allow            *bool
	Used, Retry      any
	Expires, Reset   *int64
	Remaining, Level *uint32
}

type vector struct {
	ID, Algo, Profile string
	Cfg               json.RawMessage
	Steps             []vectorStep
}

// TestVectors runs the cases of shared/limit through a table. Those that follow
// other rules than ours are listed there.
func TestVectors(t *testing.T) {
	b, err := os.ReadFile("../limit/testdata/vectors.json")
	require.NoError(t, err)
	var all []vector
	require.NoError(t, json.Unmarshal(b, &all))
	run := 0
	for _, v := range all {
		if v.Profile != "core" {
			continue
		}
		run++
		t.Run(v.ID, func(t *testing.T) { runVector(t, &v) })
	}
	require.Equal(t, 53, run)
}

func (c *vectorWindow) definition(t *testing.T, algo string) limit.Window {
	w := limit.Window{Limit: c.Limit, PeriodNs: c.Window * ms}
	bucket := func(burst, requests uint32, period int64) limit.Window {
		return limit.Window{Algorithm: limit.TokenBucket, Limit: requests, PeriodNs: period * ms, Burst: burst}
	}
	switch algo {
	case "fixed_aligned", "layered_aligned":
		return aligned(c.Limit, c.Window*ms, c.Offset*ms)
	case "fixed_perkey":
		return perKey(c.Limit, c.Window*ms)
	case "sliding_log":
		w.Algorithm, w.Units = limit.SlidingWindowLog, uint16(c.Limit)
	case "sliding_counter":
		w.Algorithm = limit.SlidingWindowCounter
	case "token_bucket", "layered_token":
		return bucket(c.Capacity, c.Refill, c.Per)
	case "gcra":
		return bucket(c.Burst, 1, c.Period)
	case "leaky_meter":
		return bucket(c.Capacity, c.Leak, c.Per)
	default:
		require.Fail(t, "unknown algorithm", algo)
	}
	return w
}

// played is a case that runs through a table. Its times start at base.
type played struct {
	table *Table
	entry Entry
	base  int64
}

func (p *played) read(t *testing.T, at int64) *Entry {
	require.Equal(t, OK, p.table.Read(&p.entry, keyed(p.table, []byte("k")), p.base+at*ms))
	return &p.entry
}

func runVector(t *testing.T, v *vector) {
	var list []vectorWindow
	if v.Cfg[0] == '[' {
		require.NoError(t, json.Unmarshal(v.Cfg, &list))
	} else {
		list = make([]vectorWindow, 1)
		require.NoError(t, json.Unmarshal(v.Cfg, &list[0]))
	}
	var windows []limit.Window
	for _, c := range list {
		windows = append(windows, c.definition(t, v.Algo))
	}
	p := &played{table: configured(newMemory(), "o", 0, definition(v.ID, 4, windows...))}
	if v.Algo == "sliding_counter" {
		p.base = 2 * windows[0].PeriodNs // leave room for the previous period
	}
	for i, c := range list {
		switch {
		case c.Initial != nil:
			require.Equal(t, OK, p.table.Set(p.read(t, c.Start), i, c.Capacity-*c.Initial, true))
		case c.Bucket != nil:
			require.Equal(t, OK, p.table.Inc(p.read(t, *c.Bucket-c.Window), i, c.Prev, true))
			require.Equal(t, OK, p.table.Inc(p.read(t, *c.Bucket), i, c.Cur, true))
		}
	}
	for _, s := range v.Steps {
		if s.Kind != "seq" {
			p.step(t, s)
			continue
		}
		missed := 0
		for i := range s.N {
			if !hit(t, p.table, []byte("k"), p.base+(s.T+int64(i)*s.Step)*ms, 1) {
				missed++
			}
		}
		require.Equal(t, s.Miss, missed)
	}
}

func (p *played) step(t *testing.T, s vectorStep) {
	e := p.read(t, s.T)
	pass := p.table.Check(e, s.Cost)
	if s.Op == "hit" && pass == e.Now && s.Cost > 0 {
		require.Equal(t, OK, p.table.Commit(e, s.Cost, true))
		p.read(t, s.T)
	}
	if s.Allow != nil {
		require.Equal(t, *s.Allow, pass == e.Now)
	}
	switch retry := s.Retry.(type) {
	case string:
		require.Equal(t, limit.Never, pass)
	case float64:
		require.Equal(t, p.base+(s.T+int64(retry))*ms, pass)
	}
	var counted []any
	remaining := uint32(1<<32 - 1)
	for i, w := range p.table.def.Windows {
		u := p.table.Usage(e, i)
		counted = append(counted, float64(w.Count(u, e.Now)))
		remaining = min(remaining, w.Remaining(u, e.Now))
		if s.Expires != nil {
			require.Equal(t, *s.Expires*ms, w.Reset(u, e.Now))
		}
		if s.Reset != nil {
			require.Equal(t, e.Now+*s.Reset*ms, w.Reset(u, e.Now))
		}
		if s.Level != nil {
			require.Equal(t, *s.Level, w.Count(u, e.Now))
		}
	}
	if s.Remaining != nil {
		require.Equal(t, *s.Remaining, remaining)
	}
	switch want := s.Used.(type) {
	case []any:
		require.Equal(t, want, counted)
	case float64:
		require.InDelta(t, want, counted[0], 0)
	}
}

// TestStoredAlgorithms fails when records can hold a new algorithm: then its
// vectors must be run, and floorShapes must have it.
func TestStoredAlgorithms(t *testing.T) {
	var stored []limit.Algorithm
	for a := range 256 {
		if limit.Algorithm(a) == algorithmLease {
			continue // no algorithm of a policy: nothing counts in it
		}
		if part, floor := usageBytes(limit.Window{Algorithm: limit.Algorithm(a)}); part != 0 || floor != 0 {
			stored = append(stored, limit.Algorithm(a))
		}
	}
	require.Equal(t, []limit.Algorithm{
		limit.FixedWindow, limit.FixedWindowPerKey, limit.SlidingWindowLog, limit.SlidingWindowCounter, limit.TokenBucket,
		limit.Calendar, // which is at home in steptest, since its windows are too long for floorShapes
	}, stored)
}
