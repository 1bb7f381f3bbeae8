package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The table of the document is that of the figures beside it.
func TestTableIsThatOfTheFigures(t *testing.T) {
	docs := filepath.Join(buildtest.Root(), "docs")
	r, err := former(docs)
	require.NoError(t, err)
	require.NotEmpty(t, r.Rows)
	page, err := os.ReadFile(filepath.Join(docs, "scale.md"))
	require.NoError(t, err)
	filled, err := r.fill(string(page))
	require.NoError(t, err)
	require.Equal(t, filled, string(page), "make bench-scale")
	titles := map[string]bool{}
	for _, p := range (&bench{}).parts() {
		titles[p.title] = true
	}
	for _, row := range r.Rows {
		require.True(t, titles[row.Part], "no part %q is measured any more", row.Part)
		require.GreaterOrEqual(t, len(row.Values), 3, row.What)
	}
}

func TestRow(t *testing.T) {
	for name, tc := range map[string]struct {
		row  row
		want string
	}{
		"odd":    {row{What: "a", Unit: "ms", Values: []float64{3, 1, 2}}, "| a | 2.00 ms | 1.00 – 3.00 |  |"},
		"even":   {row{What: "a", Unit: "s", Values: []float64{20, 10}}, "| a | 15.0 s | 10.0 – 20.0 |  |"},
		"met":    {row{What: "a", Unit: "s", Values: []float64{2}, Target: 2}, "| a | 2.00 s | 2.00 – 2.00 | ≤ 2.00: met |"},
		"missed": {row{What: "a", Unit: "s", Values: []float64{1, 2.1, 3}, Target: 2}, "| a | 2.10 s | 1.00 – 3.00 | ≤ 2.00: missed |"},
		"large":  {row{What: "a", Unit: "b", Values: []float64{1234567}}, "| a | 1,234,567 b | 1,234,567 – 1,234,567 |  |"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, tc.row.line()) })
	}
}

func TestJoin(t *testing.T) {
	parts := []part{{title: "A"}, {title: "B"}, {title: "C"}}
	rows := func(parts string, what string) (list []row) {
		for _, p := range parts {
			list = append(list, row{Part: string(p), What: what})
		}
		return list
	}
	got := result{Machine: "new", Rows: rows("B", "new")}.join(result{Machine: "old", Rows: rows("CBAB", "old")}, parts)
	require.Equal(t, "new", got.Machine)
	require.Equal(t, []row{{Part: "A", What: "old"}, {Part: "B", What: "new"}, {Part: "C", What: "old"}}, got.Rows)
}

// What is measured is a policy, and the largest one there may be.
func TestPolicies(t *testing.T) {
	n, err := policy.ParseJSON(policyJSON(most))
	require.NoError(t, err)
	p, problems, warnings := policy.Read(n)
	require.Empty(t, problems)
	require.Empty(t, warnings)
	require.Len(t, p.Rules, most)
	require.Less(t, len(policyOf(most, 1_000)), policy.MaxBytes)
	require.Equal(t, 3, strings.Count(string(requestsFor(10, 3)), "\n"))
}

// A run that is interrupted ends with an error and takes what it started along.
func TestInterrupted(t *testing.T) {
	b := &bench{dir: t.TempDir(), sluice: fake(t, "exec sleep 60")}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := b.serve(ctx, "data")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = b.command(ctx, "validate")
	require.Error(t, err)
	require.Less(t, time.Since(began), 10*time.Second)
}

// What is not answered by the end has been waited for all the same.
func TestAWaitUnderWayCounts(t *testing.T) {
	w := watch(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	time.Sleep(20 * time.Millisecond)
	require.GreaterOrEqual(t, w.longest(), 20*time.Millisecond)
}

func fake(t *testing.T, script string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluice")
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	return file
}

func TestMemoryOfAProcess(t *testing.T) {
	now, most, err := memoryOf(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, now, 1.0)
	require.GreaterOrEqual(t, most, now)
}
