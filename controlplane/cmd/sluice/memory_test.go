package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

const mostResident = 500 << 20

// hostile are policies of nearly 1 MiB that are dear to read.
func hostile() []string {
	const size = 1<<20 - 1000
	fill := func(begin, item, end string) string {
		return begin + strings.Repeat(item, (size-len(begin)-len(end))/len(item)) + end
	}
	valid := "version: 1\nrules:\n"
	for i := range 10000 {
		valid += fmt.Sprintf("  - {name: rule-%d, key: [{header: x-user-%d}, client_ip], limits: [%d/1s, %d/1m]}\n", i, i, i, i)
	}
	return []string{
		valid, strings.ReplaceAll(valid, "rule-", "other-"),
		fill("version: 1\nrules: [", "1,", "1]\n"),
		fill("version: 1\nrules: [", "{},", "{}]\n"),
		fill("version: 1\nrules: [{", "a: 1,", "b: 1}]\n"),
		fill("version: 1\nrules: [{name: a, limits: [", "1/1s,", "1/1s]}]\n"),
		fill(`{"version":1,"rules":[`, `{"name":"a","limits":[]},`, `{"name":"a","limits":[]}]}`),
		fill("version: 1\ndomain: \"", "\\u0041", "\"\nrules: []\n"),
	}
}

// 100 callers at once, each with 1 MiB; under the race detector, which takes ten times as
// long for each, 30.
func TestParallelPoliciesAreBoundedInMemory(t *testing.T) {
	s := startServe(t, t.TempDir())
	texts := hostile()
	callers := 100
	if buildtest.Race {
		callers = 30
	}
	codes, retries := make([]int, callers), make([]string, callers)
	var wg sync.WaitGroup
	for i := range codes {
		wg.Go(func() {
			response, err := http.Post(s.url+"/v1/policies", "application/yaml", strings.NewReader(texts[i%len(texts)]))
			if err != nil {
				return // refused before it had sent all
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			codes[i], retries[i] = response.StatusCode, response.Header.Get("Retry-After")
		})
	}
	wg.Wait()
	for i, code := range codes {
		require.Contains(t, []int{0, http.StatusCreated, http.StatusUnprocessableEntity, http.StatusServiceUnavailable}, code)
		require.Equal(t, code == http.StatusServiceUnavailable, retries[i] != "")
	}
	require.Contains(t, codes, http.StatusServiceUnavailable)
	for _, text := range texts[2:] { // on a busy machine none of them may have had its turn
		code, _, err := s.ask(t.Context(), http.MethodPost, "/v1/policies", text)
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, code)
	}
	status := buildtest.StatusOf(s.process.Pid)
	peak := buildtest.Memory(t, status, buildtest.Peak)
	t.Logf("at most %d MiB, %d MiB afterwards", peak>>20, buildtest.Memory(t, status, buildtest.Resident)>>20)
	buildtest.Below(t, peak, mostResident)
	_, err := s.apply("version: 1\nrules: []\n")
	require.NoError(t, err, "it goes on serving")
}
