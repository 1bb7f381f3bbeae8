package replay

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

// Rules that charge by the status settle by the log's; of others it says that it cannot tell.
func TestAnswersOfTheLog(t *testing.T) {
	var log strings.Builder
	for i, status := range []int{401, 200, 200, 403, 200, 401, 200} { // the limit is 2 failures
		l := logged{noonMs + int64(i)*1000, "u", "/a", "192.0.2.1", status}
		log.WriteString(l.line())
	}
	report, err := Run(t.Context(), Options{
		Log: accesslog.Options{Names: []string{"-"}, In: strings.NewReader(log.String())}, Wasm: compiled(t), Policy: File{"p.yaml", []byte(`
version: 1
rules:
  - {name: failures, limits: [2/1d], settle: {when: {status: [401, 403]}}}
  - {name: tokens, limits: [9/1d], settle: {to: tokens}}
  - {name: slots, algorithm: concurrency, limits: [1]}
  - {name: seconds, mode: "off", limits: [9/1d], settle: {to: milliseconds}}
`)},
	})
	require.NoError(t, err)
	require.EqualValues(t, 3, report.Rules[0].Denied, "after the second failure")
	require.Equal(t, []string{
		"rule tokens: its figures cannot be told, because the log lacks tokens",
		"rule slots: its figures cannot be told, because the log lacks how many requests ran at once",
	}, report.Warnings)
}
