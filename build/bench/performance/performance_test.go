package performance_test

import (
	"encoding/xml"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
)

// ratio is a case whose rounds have these ratios.
func ratio(name string, list ...float64) performance.Case {
	c := performance.Case{Name: name, Title: name, Workers: 1}
	for _, r := range list {
		c.Visits = append(c.Visits, performance.Visit{BaseUs: 40, TestUs: 40 * r, Ratio: r, BytesPerKey: 39})
	}
	return c
}

func good() performance.Run {
	return performance.Run{
		Cases: []performance.Case{
			ratio(performance.None, 1, 1.01, 0.99), ratio(performance.Floor, 1.25), ratio(performance.Header, 1.3, 1.33, 1.9),
			ratio(performance.Leased, 1.2), ratio(performance.Denied, 0.8), ratio(performance.DirectAllowed, 1.5), ratio(performance.DirectDenied, 1.5),
			ratio(performance.ManyKeys, 1.4),
		},
		Loads: []performance.Load{{Name: performance.Ours, BlockedMs: []float64{1300}, ChangedMs: []float64{30}, Grown: []uint64{95_000_000}}},
	}
}

func TestTargets(t *testing.T) {
	// missed counts the targets that are not met, and those not known.
	missed := func(change func(*performance.Run)) (missed, unknown int) {
		r := good()
		change(&r)
		for _, target := range r.Targets() {
			if !target.Met() {
				missed++
			}
			if !target.Known {
				unknown++
			}
		}
		return missed, unknown
	}
	set := func(name string, to performance.Case) func(*performance.Run) {
		return func(r *performance.Run) {
			for i, c := range r.Cases {
				if c.Name == name {
					r.Cases[i] = to
				}
			}
		}
	}
	for _, c := range []struct {
		what            string
		change          func(*performance.Run)
		missed, unknown int
	}{
		{"all met, each at its bound", func(*performance.Run) {}, 0, 0},
		{"the median decides", set(performance.Header, ratio(performance.Header, 1.4, 1.34, 1)), 1, 0},
		{"leased above its bound", set(performance.Leased, ratio(performance.Leased, 1.23)), 1, 0},
		{"leased above the floor", set(performance.Floor, ratio(performance.Floor, 1.19)), 1, 0},
		{"denied dearer than allowed", set(performance.Denied, ratio(performance.Denied, 1.34)), 1, 0},
		{"the same without an upstream", set(performance.DirectDenied, ratio(performance.DirectDenied, 1.51)), 1, 0},
		{"leased was left out", set(performance.Leased, ratio(performance.Leased)), 2, 2},
		{"a key too large", func(r *performance.Run) { r.Cases[7].Visits[0].BytesPerKey = 40.1 }, 1, 0},
		{"one admitted over a limit", func(r *performance.Run) { r.Cases[2].Visits[1].Over = 1 }, 1, 0},
		{"blocked too long", func(r *performance.Run) { r.Loads[0].BlockedMs = []float64{1301} }, 1, 0},
		{"changed too slowly", func(r *performance.Run) { r.Loads[0].ChangedMs = []float64{29, 31, 31} }, 1, 0},
		{"too much memory", func(r *performance.Run) { r.Loads[0].Grown = []uint64{95_000_001} }, 1, 0},
		{"no loads", func(r *performance.Run) { r.Loads = nil }, 3, 3},
		{"nothing", func(r *performance.Run) { *r = performance.Run{} }, 10, 10},
	} {
		got, unknown := missed(c.change)
		require.Equal(t, c.missed, got, c.what)
		require.Equal(t, c.unknown, unknown, c.what)
	}
	require.NotContains(t, good().TargetTable(), "missed")
	bad := good()
	bad.Loads[0].BlockedMs = []float64{2000}
	require.Contains(t, bad.TargetTable(), "| main thread blocked by a new binary | 1300 ms | 2000 ms | **missed** |")
}

func TestTables(t *testing.T) {
	r := good()
	require.Contains(t, r.CaseTable(), "| header | +0.33 (+0.30 … +0.90) | 13.2 |")
	r.Cases[2].Visits, r.Cases[2].Why = nil, "is not built yet"
	require.Contains(t, r.CaseTable(), "| header | is not built yet | | | | |")
	require.Empty(t, r.Others())
	r.Cases[0].Visits[0].ServiceUs, r.Cases[0].Visits[0].RedisUs = 100, 20
	require.Contains(t, r.Others(), "the service 0 µs") // the median of three rounds

	text, err := r.Write()
	require.NoError(t, err)
	back, err := performance.Read(text)
	require.NoError(t, err)
	require.Equal(t, r, back)
	_, err = performance.Read([]byte("{"))
	require.ErrorContains(t, err, "read figures")
}

func TestMachine(t *testing.T) {
	r := good()
	r.Envoy, r.Processor, r.Cores, r.Rounds, r.Pairs, r.TurnMs = "1.40.0", "AMD EPYC", 2, 3, 50, 25
	require.Contains(t, r.Machine(), "Envoy 1.40.0 on 2 cores of an AMD EPYC; 3 rounds of 50 pairs of turns of 25 ms.")
	r.Rounds, r.Pairs = 1, 1
	require.Contains(t, r.Machine(), "; 1 round of 1 pair of turns of 25 ms.")
}

// TestPicture checks that what is drawn is XML and stays within its edges, as
// far as that can be told without a font: 6.6 pixels a letter is a wide one.
func TestPicture(t *testing.T) {
	r := good()
	r.Cases[1] = ratio(performance.Floor, 3.5)
	r.Cases[1].Title = "a <title> & more"
	picture := r.Picture()
	var svg struct {
		Width float64 `xml:"width,attr"`
		Texts []struct {
			X      float64 `xml:"x,attr"`
			Anchor string  `xml:"text-anchor,attr"`
			Text   string  `xml:",chardata"`
		} `xml:"text"`
	}
	require.NoError(t, xml.Unmarshal(picture, &svg))
	require.Contains(t, string(picture), "beyond the edge")
	for _, text := range svg.Texts {
		long := 6.6 * float64(len(text.Text))
		from, to := text.X, text.X+long
		if text.Anchor == "end" {
			from, to = text.X-long, text.X
		}
		require.GreaterOrEqual(t, from, 0.0, text.Text)
		require.LessOrEqual(t, to, svg.Width, text.Text)
	}
}
