package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Why a policy's token bucket takes no limit from the request. A bucket that is half full is
// full in 30 s whatever its limit, and a page's floor knows no more of a key than that. So
// when the key comes back after its eviction with ten times the number, it has 50 tokens,
// where its record would have had the 5 that were left: 45 are refunded.
func TestABucketWhoseNumberGrowsGetsTokensBackByEviction(t *testing.T) {
	for _, evicted := range []bool{false, true} {
		store, now := newMemory(), 2000*second
		small, large := tokenBucket(10, 10, 60*second), tokenBucket(100, 100, 60*second)
		table, key := inConfig(store, 1, small, nil)
		require.Equal(t, 5, admit(t, table, key, now, 5))
		if evicted {
			evict(t, table, key.Rule, "other", now)
		}
		key.Windows = []limit.Window{large}
		require.Equal(t, map[bool]int{false: 5, true: 50}[evicted], admit(t, table, key, now, 100))
	}
}
