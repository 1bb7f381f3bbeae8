package scale

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestRow(t *testing.T) {
	for want, r := range map[string]row{
		"a | 2.00 ms | 1.00 – 3.00 | ":                  {What: "a", Unit: "ms", Values: []float64{3, 1, 2}},
		"a | 15.0 s | 10.0 – 20.0 | ":                   {What: "a", Unit: "s", Values: []float64{20, 10}},
		"a | 2.00 s | 2.00 – 2.00 | ≤ 2.00: met":        {What: "a", Unit: "s", Values: []float64{2}, Target: 2},
		"a | 2.10 s | 1.00 – 3.00 | ≤ 2.00: **missed**": {What: "a", Unit: "s", Values: []float64{1, 2.1, 3}, Target: 2},
		"a | 1,234,567 b | 1,234,567 – 1,234,567 | ":    {What: "a", Unit: "b", Values: []float64{1234567}},
	} {
		require.Equal(t, want, r.line())
	}
}

func TestJoin(t *testing.T) {
	rows := func(what string, of ...int) (list []row) {
		for _, i := range of {
			list = append(list, row{Part: parts[i].title, What: what})
		}
		return list
	}
	got := figures{Machine: "new", Rows: rows("new", 1)}.join(figures{Machine: "old", Rows: rows("old", 2, 1, 0, 1)})
	require.Equal(t, figures{Machine: "new", Rows: append(append(rows("old", 0), rows("new", 1)...), rows("old", 2)...)}, got)
}

// What is measured is a policy, and the largest one there may be.
func TestPolicies(t *testing.T) {
	n, err := policy.ParseJSON(policyJSON(maxRules))
	require.NoError(t, err)
	p, problems := policy.Read(n)
	require.Empty(t, problems)
	require.Len(t, p.Rules, maxRules)
	require.Less(t, len(policyOf(maxRules, 1_000)), policy.MaxBytes)
	require.Equal(t, 3, strings.Count(string(requestsFor(10, 3)), "\n"))
}

// A run that is interrupted ends with an error and takes what it started along.
func TestInterrupted(t *testing.T) {
	b := &bench{dir: t.TempDir()}
	b.sluice = filepath.Join(b.dir, "sluice")
	require.NoError(t, os.WriteFile(b.sluice, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := b.serve(ctx, "data")
	require.Error(t, err)
	_, err = b.cli(ctx, "validate")
	require.Error(t, err)
	require.Less(t, time.Since(began), 10*time.Second)
}

// What is not answered by the end counts too.
func TestAWaitUnderWayCounts(t *testing.T) {
	w := watch(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	time.Sleep(20 * time.Millisecond)
	require.GreaterOrEqual(t, w.longest(), 20*time.Millisecond)
}
