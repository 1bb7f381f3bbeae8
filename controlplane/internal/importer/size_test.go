package importer_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

// TestTimeIsLinear: four times the configuration takes about four times the work.
// Where each thing is compared with each other it is sixteen times.
func TestTimeIsLinear(t *testing.T) {
	const few, many = 5_000, 20_000
	const head = "domain: d\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	for name, line := range map[string]string{
		"unknown fields": "f%d: 1\n",
		"unknown keys":   "- {key: k%d}\n",
		"values":         "- {key: generic_key, value: v%d}\n",
		"limited values": "- {key: tenant, value: v%d, rate_limit: {unit: day, requests_per_unit: 1}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			took := func(n int) time.Duration {
				var text strings.Builder
				text.WriteString(head)
				for i := range n {
					fmt.Fprintf(&text, line, i)
				}
				shortest := time.Hour
				for range 3 {
					began := worked(t)
					_, _ = importer.EnvoyRatelimit([]importer.File{{Name: "f", Text: []byte(text.String())}}, importer.Options{})
					shortest = min(shortest, worked(t)-began)
				}
				return shortest
			}
			small, large := took(few), took(many)
			require.Less(t, large, 10*small, "%v for %d, %v for %d", small, few, large, many)
		})
	}
}

// worked is the processor time that the process has used, so that what else the
// machine does is not measured.
func worked(t *testing.T) time.Duration {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestTooLargeForOnePolicy: the configuration is at fault, not the importer.
func TestTooLargeForOnePolicy(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 12_000 {
		fmt.Fprintf(&text, "- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	made, err := importer.EnvoyRatelimit([]importer.File{{Name: "f", Text: []byte(text.String())}}, importer.Options{})
	require.ErrorContains(t, err, "bytes, and the maximum is 1048576 (1 MiB): split the file by domain or descriptor")
	require.NotContains(t, err.Error(), "fault of this import")
	require.Empty(t, made.Policy)
}

// TestBombs: what grows when it is read is refused in a moment.
func TestBombs(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	for name, tc := range map[string]struct{ text, want string }{
		"aliases": {laughs.String() + "domain: d\n", "an alias counts each time it is used"},
		"depth":   {"domain: d\ndescriptors: " + strings.Repeat("[{key: a, descriptors: ", 5000) + strings.Repeat("}]", 5000), "deep"},
		"integer": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1" + strings.Repeat("0", 100_000) + "}}]", "whole number from 0"},
		"parts":   {strings.Repeat("a: 1\n---\n", 100_000), "more than 100 documents"},
		"size":    {"domain: d\n" + strings.Repeat("#\n", 1<<20), "the most is 1048576"},
	} {
		_, err := importer.EnvoyRatelimit([]importer.File{{Name: "f", Text: []byte(tc.text)}}, importer.Options{})
		require.ErrorContains(t, err, tc.want, name)
	}
}
