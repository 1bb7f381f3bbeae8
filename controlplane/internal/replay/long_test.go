package replay

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

var (
	longLines   = flag.Int("replay-lines", 20_000, "how many generated lines are replayed")
	longClients = flag.Int("replay-clients", 2_000, "of how many clients")
)

const maxLongBytes = 1 << 30

// A day of lines is replayed in bounded memory, and counted as a model does.
func TestReplayOfADay(t *testing.T) {
	const perHour = 100
	name := filepath.Join(t.TempDir(), "access.log")
	clients, denied := writeDay(t, name, perHour)
	capacity := max(65536, 2**longClients)
	began := time.Now()
	report, err := Run(t.Context(), Options{
		Log: accesslog.Options{
			Names: []string{name}, Sort: 30 * time.Second,
			Format: `[%START_TIME%] "%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%" %RESPONSE_CODE% %DURATION% "%REQ(X-USER-ID)%" "%REQ(USER-AGENT)%"`,
		},
		Policy: File{"policy.yaml", fmt.Appendf(nil,
			"{version: 1, rules: [{name: r, key: [{header: x-user-id}], limits: [%d/1h], capacity: %d}]}", perHour, capacity)},
		Wasm: buildtest.Wasm(t), CacheDir: buildtest.CacheDir(), Warn: func(m string) { t.Log(m) },
	})
	require.NoError(t, err)
	took := time.Since(began)
	peak := buildtest.Memory(t, buildtest.StatusOf(os.Getpid()), buildtest.Peak)
	t.Logf("%d lines of %d clients in %s, %.0f a second; at most %d MiB of memory",
		*longLines, clients, took.Round(time.Millisecond), float64(*longLines)/took.Seconds(), peak>>20)
	rule := &report.Rules[0]
	require.EqualValues(t, *longLines, rule.Requests)
	require.EqualValues(t, clients, rule.Clients)
	require.EqualValues(t, denied, rule.Denied)
	require.Zero(t, report.Log.Late)
	require.Less(t, peak, maxLongBytes)
}

// writeDay writes lines of clients of which few send most, and returns how many clients
// there are and how many requests their hours' limits deny.
func writeDay(t *testing.T, name string, perHour int) (clients, denied int) {
	t.Helper()
	file, err := os.Create(name)
	require.NoError(t, err)
	w := bufio.NewWriterSize(file, 1<<20)
	dice := rand.New(rand.NewPCG(1, 1))
	seen, used := map[int]bool{}, map[[2]int]int{}
	step := int64(24*time.Hour) / int64(*longLines)
	for i := range *longLines {
		at := time.Unix(0, noonMs*1e6+int64(i)*step).UTC()
		client := dice.IntN(*longClients)
		if dice.IntN(4) == 0 {
			client = dice.IntN(1 + *longClients/1000)
		}
		seen[client] = true
		hour := [2]int{client, int(at.Unix() / 3600)}
		if used[hour]++; used[hour] > perHour {
			denied++
		}
		_, err = fmt.Fprintf(w, "[%s] \"GET /v1/things/%d?page=2 HTTP/1.1\" 200 12 \"user-%d\" \"app/3\"\n",
			at.Format("2006-01-02T15:04:05.000Z"), i%1000, client)
		require.NoError(t, err)
	}
	require.NoError(t, w.Flush())
	require.NoError(t, file.Close())
	return len(seen), denied
}
