package simulate_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// Cases from the tests of other rate limiters, each with its source: lines on one rule, and what
// must be said of them. A leaky meter, or GCRA, is a token bucket; nanoseconds are taken for
// milliseconds, as a bucket does not change when all its times are a million times as long. Left
// out is what follows other rules than ours: a denied hit that takes what is left, as
// gubernator's, an interval whose end counts, as limits', a sliding count with fractions.
func TestVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var vectors []struct {
		ID, Src, Rule string
		Denied        *int // of all lines
		Lines         []struct {
			In   json.RawMessage
			Want map[string]any
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&vectors))
	for i, v := range vectors {
		if i > 0 && buildtest.Race {
			break // one goroutine runs a case
		}
		t.Run(v.ID, func(t *testing.T) {
			var in strings.Builder
			for _, l := range v.Lines {
				in.Write(append(l.In, '\n'))
			}
			policy := "version: 1\nrules: [{name: r, cost: {header: x-cost, min: 0, max: 4294967295}, " + v.Rule + "}]\n"
			out, err := run(t, policy, in.String(), simulate.Options{})
			require.NoError(t, err)
			if v.Denied != nil {
				require.Equal(t, *v.Denied, strings.Count(out, `"allowed":false,"status"`))
			}
			for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
				got := said(t, line)
				for field, want := range v.Lines[i].Want {
					require.Equal(t, want, got[field], "%s of line %d: %s", field, i, line)
				}
			}
		})
	}
}

// said is what a line says, also of the rule and of its windows.
func said(t *testing.T, text string) map[string]any {
	t.Helper()
	var line struct {
		Allowed any
		Retry   any `json:"retry_after_ms"`
		Rules   []struct {
			Remaining any
			Windows   []struct {
				Used  any
				Reset any `json:"reset_ms"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &line))
	said := map[string]any{"allowed": line.Allowed, "retry_after_ms": line.Retry}
	for _, r := range line.Rules { // one, of requests
		var used, reset []any
		for _, w := range r.Windows {
			used, reset = append(used, w.Used), append(reset, w.Reset)
		}
		said["remaining"], said["used"], said["reset_ms"] = r.Remaining, used, reset
	}
	return said
}
