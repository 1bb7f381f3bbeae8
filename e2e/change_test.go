package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

func TestRaisedLimitLetsTheDifferenceThrough(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("100/"+far))
		l := s.load(16)
		require.Equal(t, 100, count(l.send(t, 300, user("alice")), allowed))
		s.apply(t, perUser("150/"+far))
		require.Equal(t, 50, count(l.send(t, 300, user("alice")), allowed))
		s.apply(t, perUser("40/"+far))
		require.Equal(t, 0, count(l.send(t, 300, user("alice")), allowed))
		// A second window starts empty, the first keeps its usage.
		s.apply(t, perUser("160/"+far+", 30/365d"))
		require.Equal(t, 10, count(l.send(t, 300, user("alice")), allowed))
		// Another rule name with the same counter is the same counter.
		s.apply(t, `
version: 1
rules: [{name: renamed, counter: per-user, key: [{header: x-user-id}], limits: [170/`+far+`]}]
`)
		require.Equal(t, 10, count(l.send(t, 300, user("alice")), allowed))
	})
}

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

// Pushing policies under load loses no count and adds none. The policies differ only
// in a comment.
func TestPushesUnderLoad(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		policy := func(extra int) string {
			return perUser("500/"+far) + fmt.Sprintf("  # %d\n", extra)
		}
		s := serve(t, d, policy(0))
		first := s.runs(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 5 {
				s.apply(t, policy(i+1))
			}
		})
		deadline := time.Now().Add(30 * time.Second)
		passed := 0
		for pushed := false; !pushed || passed < 500; {
			require.Less(t, time.Now(), deadline)
			passed += count(s.load(8).send(t, 200, user("alice")), allowed)
			pushed = s.runs(t) >= first+5
		}
		wg.Wait()
		require.Equal(t, 500, passed)
	})
}
