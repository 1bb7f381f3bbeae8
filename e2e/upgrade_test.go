//go:build long || gateway

package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// The binary of an earlier commit takes the counters over. So does the first one when
// it comes back.
func TestAnotherBinaryKeepsTheCounters(t *testing.T) {
	earlier := earlierFilter(t)
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("100/"+far))
		l := s.load(16)
		require.Equal(t, 100, count(l.send(t, 200, user("alice")), allowed))
		for i, wasm := range []string{earlier, built.filter} {
			s.apply(t, perUser(fmt.Sprint(150+50*i, "/", far)), "--wasm", wasm)
			require.Equal(t, 50, count(l.send(t, 200, user("alice")), allowed))
		}
	})
}

// earlierFilter returns the path of an unpacked filter of an earlier commit with the
// same format of records.
func earlierFilter(t *testing.T) string {
	t.Helper()
	packed, err := os.Open(filepath.Join(buildtest.Root(), "filter", "testdata", "format1.wasm.gz"))
	require.NoError(t, err)
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "earlier.wasm")
	wasm, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(wasm, unpacked)
	require.NoError(t, err)
	require.NoError(t, wasm.Close())
	return path
}
