package redisstore_test

import (
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/redistest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota/storetest"
)

// BenchmarkSwap swaps values of 64 bytes under keys of their own, 64 at once from
// each of eight callers: what one server does for a busy quota service. It reports the
// processor's time too, of the server and of this side with the benchmark itself.
func BenchmarkSwap(b *testing.B) {
	const callers, atOnce = 8, 64
	server := redistest.Start(b, redistest.Redis(b)[0])
	store := open(b, "redis://"+server.Addr())
	now := storetest.Now(b, store)
	text := string(make([]byte, 56))
	b.ReportAllocs()
	servers, ours := serverCPU(b, server), ourCPU(b)
	b.ResetTimer()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			swaps := make([]quota.Swap, atOnce)
			for i := range swaps {
				swaps[i] = storetest.Write(now, storetest.Key(), nil, storetest.Value(text))
			}
			for n := 0; n < b.N/callers; n += atOnce {
				for _, r := range storetest.All(b, store, swaps) {
					if r.Outcome != quota.Swapped {
						b.Errorf("outcome %d: %v", r.Outcome, r.Err)
						return
					}
				}
				for i := range swaps {
					swaps[i].Old = swaps[i].New[:quota.NonceBytes]
					swaps[i].New = storetest.Value(text)
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "swaps/s")
	b.ReportMetric((serverCPU(b, server)-servers)/float64(b.N)*1e6, "server-µs/op")
	b.ReportMetric((ourCPU(b)-ours)/float64(b.N)*1e6, "client-µs/op")
}

var usedCPU = regexp.MustCompile(`used_cpu_(?:sys|user):([\d.]+)`)

// serverCPU is the processor's seconds that the server has used.
func serverCPU(b *testing.B, server *redistest.Server) (seconds float64) {
	b.Helper()
	for _, found := range usedCPU.FindAllStringSubmatch(server.Do("INFO", "cpu"), -1) {
		part, err := strconv.ParseFloat(found[1], 64)
		require.NoError(b, err)
		seconds += part
	}
	return seconds
}

// ourCPU is the processor's seconds that this process has used.
func ourCPU(b *testing.B) float64 {
	b.Helper()
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
