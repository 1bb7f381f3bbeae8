package buildtest

import (
	"context"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAlone(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		passed time.Duration
		usage  usage
		want   time.Duration
	}{
		"idle":                          {2 * s, usage{0, 0, 4 * s}, 2 * s},
		"the test uses all":             {2 * s, usage{4 * s, 4 * s, 4 * s}, 2 * s},
		"half is others'":               {2 * s, usage{s, 3 * s, 4 * s}, s},
		"three quarters are others'":    {8 * s, usage{4 * s, 16 * s, 16 * s}, 2 * s},
		"clocks that differ by a tick":  {2 * s, usage{s, s - 1, 4 * s}, 2 * s},
		"all is others'":                {60 * s, usage{0, 120 * s, 120 * s}, 2 * s},
		"too soon for a tick":           {s / 1000, usage{s / 1000, 0, 0}, s / 1000},
		"a tick before it was all used": {s / 1000, usage{0, s / 100, 0}, s / 1000 / maxSlowdown},
	} {
		require.InDelta(t, c.want, alone(c.passed, c.usage), float64(time.Microsecond), name)
	}
}

// busy starts programs that use more than all processors.
func busy(t *testing.T) (pids []int) {
	t.Helper()
	for range 2 * runtime.NumCPU() {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		require.NoError(t, cmd.Start())
		pids = append(pids, cmd.Process.Pid)
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	return pids
}

func TestSlowdown(t *testing.T) {
	busy(t)
	slowdown, err := Slowdown()
	require.NoError(t, err)
	require.GreaterOrEqual(t, slowdown, 1.)
	t.Log(slowdown)
}

func TestStopwatch(t *testing.T) {
	if runtime.GOOS != "linux" { // it counts wall time there
		return
	}
	pids := busy(t)
	began := time.Now()
	others, own := StartStopwatch(), StartStopwatch(pids...)
	time.Sleep(time.Second)
	beside, alone, passed := others.Elapsed(), own.Elapsed(), time.Since(began)
	ours, err := own.read()
	require.NoError(t, err)
	theirs, err := others.read()
	require.NoError(t, err)
	const slack = 100 * time.Millisecond
	used, all := (ours.own-own.before.own)-(theirs.own-others.before.own), theirs.all-others.before.all
	share := time.Duration(float64(used) / float64(all) * float64(passed))
	require.Less(t, beside, passed-share+slack, "other programs used the processors")
	require.Greater(t, alone, share-slack, "the test's children used them")

	const limit = 20 * time.Millisecond
	began = time.Now()
	ctx, cancel := others.Within(t.Context(), others.Elapsed()+limit)
	defer cancel()
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
	require.Greater(t, time.Since(began), limit)
	t.Logf("%s of %s beside others, %s alone", beside, passed, alone)

	ctx, cancel = others.Within(t.Context(), time.Hour)
	cancel()
	require.ErrorIs(t, context.Cause(ctx), context.Canceled)
}
