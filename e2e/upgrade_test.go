//go:build long || gateway

package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// The filter of an earlier commit and this one replace each other under traffic. No
// request fails, and each is counted once.
func TestAnotherBinaryKeepsTheCounters(t *testing.T) {
	t.Parallel()
	earlier := earlierFilter(t)
	everyProxy(t, func(t *testing.T, d driver) {
		limited := func(limit int) string { return oneRule(fmt.Sprintf("limits: [%d/%s]", limit, far)) }
		s := serve(t, d, limited(1_000_000))
		end := s.load(16).goOn(t, user("alice"))
		for i, wasm := range []string{earlier, built.filter} {
			s.apply(t, limited(1_000_001+i), "--wasm", wasm)
		}
		sent := end()
		require.Equal(t, len(sent), count(sent, allowed))
		t.Logf("%d requests", len(sent))
		s.apply(t, limited(len(sent)+50), "--wasm", built.filter)
		require.Equal(t, 50, count(s.load(16).send(t, 200, user("alice")), allowed))
	})
}

// earlierFilter returns the path of an unpacked filter of an earlier commit with the
// same format of records.
func earlierFilter(t *testing.T) string {
	unpacked, err := gzip.NewReader(strings.NewReader(read(t, buildtest.Root(), "filter", "testdata", "format1.wasm.gz")))
	require.NoError(t, err)
	wasm, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	return file(t, "earlier.wasm", string(wasm))
}
