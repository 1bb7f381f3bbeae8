package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatTheServiceTakesIsMissed(t *testing.T) {
	there := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(there, nil, 0o700))
	for _, c := range []struct {
		cases, ratelimit, redis string
	}{
		{cases: "."},
		{cases: "^ratelimit$", ratelimit: there},
		{cases: "rate", redis: there},
	} {
		b := &bench{options: options{which: regexp.MustCompile(c.cases), ratelimit: c.ratelimit, redis: c.redis}}
		require.ErrorContains(t, b.complete(b.chosen()), "measure ratelimit: its program is missing: give -", c.cases)
	}
	b := &bench{options: options{which: regexp.MustCompile("."), ratelimit: there, redis: there}}
	require.NoError(t, b.complete(b.chosen()))
	b = &bench{options: options{which: regexp.MustCompile("none|local")}}
	require.NoError(t, b.complete(b.chosen()), "cases without the service")
}
