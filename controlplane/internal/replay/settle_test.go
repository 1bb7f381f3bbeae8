package replay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// TestAnswersOfEnvoysLog: Envoy's log says how long answers took and how many bytes they had, so
// limits on these, and on what runs at once, are told.
func TestAnswersOfEnvoysLog(t *testing.T) {
	var text, object strings.Builder
	for i := range 9 { // each 300 ms one of 700 ms, with 40 bytes of a request and 100 of an answer
		at := time.UnixMilli(noonMs + int64(i)*300).UTC().Format("2006-01-02T15:04:05.000Z")
		fmt.Fprintf(&text, `[%s] "GET /a HTTP/1.1" 200 - 40 100 700 - "-" "-" "-" "a.example" "-"`+"\n", at)
		fmt.Fprintf(&object, `{"start_time":%q,"method":"GET","path":"/a","response_code":200,"bytes_received":40,"bytes_sent":100,"duration":700}`+"\n", at)
	}
	for name, log := range map[string]string{"text": text.String(), "JSON": object.String()} {
		t.Run(name, func(t *testing.T) {
			report, err := Run(t.Context(), Options{
				Log: accesslog.Options{Names: []string{"-"}, In: strings.NewReader(log)}, Wasm: compiled(t), Policy: File{"p.yaml", []byte(`
version: 1
rules:
  - {name: sent, mode: shadow, limits: [250/1d], settle: {to: response_bytes}}
  - {name: received, mode: shadow, limits: [199/1d], cost: 40, settle: {to: request_bytes}}
  - {name: busy, mode: shadow, limits: [1400/1d], settle: {to: milliseconds}}
  - {name: slots, mode: shadow, algorithm: concurrency, limits: [2]}
`)},
			})
			require.NoError(t, err)
			require.Empty(t, report.Warnings)
			for i, denied := range []int64{
				9 - 5, // those of 0 to 1200 ms: at 1500 ms three are charged
				9 - 4, // 40 are left of 199 until four are held or charged
				9 - 4, // those of 0 to 900 ms: at 1000 ms all of it is charged
				9 / 3, // each third finds two that run
			} {
				require.Equal(t, denied, report.Rules[i].Shadow, report.Rules[i].Rule)
			}
		})
	}
}

// A request that runs for weeks has two million ticks: who interrupts the replay does not wait for them.
func TestInterruptedWhileAnAnswerRuns(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	const weeksNs = int64(24 * 24 * time.Hour)
	fleet, err := simulate.NewFleet(ctx, simulate.Options{Wasm: compiled(t), Seed: seed, CacheDir: buildtest.CacheDir()}, "p.yaml",
		[]byte("version: 1\nrules:\n  - {name: slots, algorithm: concurrency, limits: [2]}\n"), noonMs*1e6)
	require.NoError(t, err)
	defer fleet.Close()
	_, _, err = fleet.Serve(noonMs*1e6, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, weeksNs)
	require.NoError(t, err)
	interrupt()
	began := time.Now()
	_, _, err = fleet.Serve(noonMs*1e6+weeksNs-1, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, 0)
	require.NoError(t, err)
	require.Less(t, time.Since(began), 20*time.Second)
}
