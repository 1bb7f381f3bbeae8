package browser

import (
	"bufio"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// aDay writes the access log of a day: many clients by day and few by night, and two that ask
// far too often for some hours.
func aDay(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	log := bufio.NewWriter(file)
	start := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	n := 0
	for minute := range 24 * 60 {
		asks := map[string]int{}
		for range int(3 + 90*math.Pow(math.Sin(math.Pi*float64(minute)/1440), 4)) {
			n++
			asks[fmt.Sprintf("198.51.%d.%d", n*n%4, n*7%250)]++
		}
		if minute >= 8*60 && minute < 11*60+20 {
			asks["203.0.113.9"] = 150
		}
		if minute >= 16*60 && minute < 17*60 {
			asks["203.0.113.77"] = 320
		}
		at := start.Add(time.Duration(minute) * time.Minute).Format("02/Jan/2006:15:04:05 -0700")
		for client, times := range asks {
			for range times {
				fmt.Fprintf(log, "%s - - [%s] \"GET /v1/orders HTTP/1.1\" 200 512 \"-\" \"app/3\"\n", client, at)
			}
		}
	}
	require.NoError(t, log.Flush())
	require.NoError(t, file.Close())
}

// The page of a replay has the console's charts, without a script.
func TestReplayPage(t *testing.T) {
	dir := t.TempDir()
	aDay(t, filepath.Join(dir, "access.log"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(`version: 1
rules:
  - {name: per-client, key: [client_ip], limits: [30/1m]}
  - {name: everybody, limits: [600/1m]}
`), 0o600))
	replay := exec.Command(program(t, "SLUICE_CLI"), "replay", "access.log", "-f", "policy.yaml", "--html", "page.html")
	replay.Dir = dir
	out, err := replay.CombinedOutput()
	require.NoError(t, err, string(out))
	page := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(page.Close)
	b := open(t, page.URL)
	b.do(chromedp.Navigate(b.base + "/page.html")) // not visit, which waits by a script: the page allows none
	b.await("h1", "What policy.yaml would have denied")
	b.await(".legend", "limit of each key: 30 per 1m")
	b.seesValues("svg.chart", `^\d\d:\d\d:\d\d · allowed [\d.,]+ · denied [\d.,]+$`)
	run(b, chromedp.Evaluate[int](`document.querySelector("h3").scrollIntoView(), 0`))
	b.see("replay", "light")
}
