package e2e

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// counters is the JSON that `sluice counters` prints.
type counters struct {
	Proxies []struct {
		operation

		Error string
	}
	Quota   *operation // of a rule of scope cluster
	Failed  int
	Sum     *int64
	AtLeast *int64 `json:"at_least"`
	Denials []answer.Denials
}

// counters runs `sluice counters` on all proxies of the control plane.
func (c *controlPlane) counters(t *testing.T, args ...string) (result counters) {
	text, errs, exit := sluice(t, append(append([]string{"counters"}, args...), "--server", c.url(), "--output", "json")...)
	result = decoded[counters](t, cmp.Or(text, errs))
	require.Equal(t, result.Failed > 0, exit != 0, errs)
	return result
}

// `sluice counters` acts on three Envoys of four workers, through the listeners that
// `render envoy --manage` gives them. Later requests see the changes. A proxy that is gone is
// reported.
func countersCommand(t *testing.T, control *controlPlane, envoys []*proxy) {
	control.apply(t, oneRule("algorithm: fixed_window_per_key, limits: [100/1h], capacity: 1000"))
	admitted := func() (each [3]int) {
		for i, p := range envoys {
			each[i] = count(p.load(16).send(t, 160, user("alice")), allowed)
		}
		return each
	}
	alice := func(op string, more ...string) counters {
		r := control.counters(t, append([]string{op, "--rule", "per-user", "--key", "alice"}, more...)...)
		require.Zero(t, r.Failed)
		require.Len(t, r.Proxies, len(envoys))
		return r
	}
	require.EqualValues(t, 0, *alice("get").Sum)
	require.EqualValues(t, 120, *alice("inc", "--n", "40").Sum)
	require.Equal(t, [3]int{60, 60, 60}, admitted())
	require.EqualValues(t, 300, *alice("get").Sum)
	require.EqualValues(t, 10, *alice("set", "--n", "90").Proxies[2].Windows[0].Remaining)
	require.Equal(t, [3]int{10, 10, 10}, admitted())
	require.Zero(t, *control.counters(t, "clean").Sum, "alice's window has not ended")
	for _, p := range alice("reset").Proxies {
		require.EqualValues(t, 1, p.Value, "there was a record")
	}
	require.Equal(t, [3]int{100, 100, 100}, admitted())
	envoys[2].kill()
	eventually(t, time.Minute, "the control plane to miss one", func() bool {
		r := control.counters(t, "inc", "--rule", "per-user", "--key", "bob", "--timeout", "5s")
		require.Positive(t, *cmp.Or(r.Sum, r.AtLeast), "the remaining proxy has counted")
		return len(r.Proxies)-r.Failed == 2
	})
}
