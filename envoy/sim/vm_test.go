package sim_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

func TestAllTimeIsTheOneGiven(t *testing.T) {
	b := setUp(t)
	for _, ns := range []int64{0, 1500e6, 1_700_000_000e9 + 1, 1000e6, -5} {
		b.at(ns)
		require.Equal(t, []string{fmt.Sprint(ns, " ", ns)}, b.do(0, "now"), "proxy call and WASI")
	}
}

func TestTicksComeWhenDue(t *testing.T) {
	b := setUp(t, workers(2))
	require.NoError(t, b.Configure([]byte("tick=100")))
	b.heard()
	due := func(ns int64) []string {
		b.at(ns)
		b.TickDue()
		return b.heard()
	}
	all := []string{"0 tick tick=100", "1 tick tick=100", "-1 tick tick=100"}
	require.Empty(t, due(99e6))
	require.Equal(t, all, due(100e6))
	require.Empty(t, due(199e6))
	require.Equal(t, all, due(1000e6), "late ticks are not made up for")
	require.Empty(t, due(1050e6))
	require.Empty(t, due(0), "a clock that steps back holds ticks up")
	require.Equal(t, all, due(50e6), "but does not hold them off: 50 ms before the step, 50 after")
	require.NoError(t, b.Tick(1))
	require.Equal(t, all[1:2], b.heard())
	require.NoError(t, b.Configure([]byte("quiet")))
	b.heard()
	require.Empty(t, due(1e12))
	require.Error(t, b.Tick(2))
}

func TestSeveralConfigurationsTick(t *testing.T) {
	b := setUp(t)
	require.NoError(t, b.Configure([]byte("tick=10")))
	b.serve(0, "on", upstream(func() {
		require.NoError(t, b.Configure([]byte("tick=10 again")))
		b.heard()
		b.at(10e6)
		b.TickDue()
		require.Equal(t, []string{"0 tick tick=10", "0 tick tick=10 again", "-1 tick tick=10 again"}, b.heard())
	}))
}

func TestMetricsAreOfTheProcess(t *testing.T) {
	b := setUp(t, workers(2))
	require.Equal(t, []string{"4 3", "8 1", "5 7"}, b.do(0, "counter c 3;counter d 1;gauge g 7"), "ids of one VM")
	require.Equal(t, []string{"4 2", "8 5", "5 5"}, b.do(1, "counter d 1;counter c 2;gauge g -2"),
		"names are the process's")
	require.Equal(t, []string{"12 5"}, b.do(0, "again c"), "defined twice: another id of another type")
	require.Equal(t, map[string]uint64{"c": 5, "d": 2, "g": 5}, b.Metrics())
}

func TestSeededRandom(t *testing.T) {
	seed := func(n uint64) func(*sim.Options) {
		return func(o *sim.Options) { o.Seed, o.Workers = n, 2 }
	}
	a, same := setUp(t, seed(1)), setUp(t, seed(1))
	other, none := setUp(t, seed(2)), setUp(t, seed(0))
	first := a.do(0, "random;random")
	require.Equal(t, first, same.do(0, "random;random"))
	require.NotEqual(t, first, other.do(0, "random;random"))
	require.NotEqual(t, first, none.do(0, "random;random"))
	require.NotEqual(t, first, a.do(1, "random;random"), "each VM has its own")
}

func TestCallsOfOldHosts(t *testing.T) {
	b := setUp(t)
	require.Equal(t, []string{"52", "0", "0", "2", `""`, `""`, "!1", "!2", "!12", "!1", "ok"},
		b.do(0, "poll;effective 1;effective 0;effective 999;"+
			"buffer 0;buffer 6;buffer 7;buffer 9;call c;foreign f;print hello"),
		"poll_oneoff is not supported, and a configuration can be read while it is taken only")
	require.Equal(t, []string{"0 said hello"}, b.heard())
}

// Workers run in parallel over one store: no update may be lost.
func TestWorkersRace(t *testing.T) {
	const n, each = 4, 200
	b := setUp(t, workers(n))
	var wg sync.WaitGroup
	var won atomic.Uint32
	for w := range n {
		wg.Go(func() {
			for range each {
				cas := "4294967294"
				if _, number, ok := strings.Cut(b.do(w, "get k")[0], "v "); ok {
					cas = number
				}
				if b.do(w, "set k v "+cas)[0] == "ok" {
					won.Add(1)
				}
			}
		})
	}
	wg.Wait()
	_, cas, _ := b.Shared().Get("k")
	require.Equal(t, won.Load(), cas, "as many writes as compare-and-swaps that said ok")
}
