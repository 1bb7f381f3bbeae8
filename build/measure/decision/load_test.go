package decision

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLoad(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get(keyHeader)
		seen[key]++
		switch {
		case key == "user-000099":
			w.WriteHeader(http.StatusServiceUnavailable)
		case seen[key] > 2:
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")

	// Eighty keys, three times each: the third is denied.
	list, err := dial(address, "", 80)
	require.NoError(t, err)
	defer list.close()
	got, err := list.full(80)
	require.NoError(t, err)
	require.Len(t, seen, 80, "as many requests as keys, and every key")
	require.Equal(t, []int{80, 0}, []int{got.admitted, got.denied})
	require.Empty(t, got.latencies)
	got, err = list.full(160)
	require.NoError(t, err)
	require.Equal(t, []int{80, 80}, []int{got.admitted, got.denied})

	got, err = list.paced(400, 500*time.Millisecond)
	require.NoError(t, err)
	require.Len(t, got.latencies, 200)
	require.Greater(t, got.took, 400*time.Millisecond)
	require.Positive(t, got.latency().p50)
	require.GreaterOrEqual(t, got.latency().p99, got.latency().p50)

	bad, err := dial(address, "", 1)
	require.NoError(t, err)
	defer bad.close()
	bad[0].keys = [][]byte{[]byte("user-000099")}
	_, err = bad.full(8)
	require.ErrorContains(t, err, "answered with 503")
}
