package e2e

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var freshKeys = flag.Int("fresh-keys", 500, "keys whose records all workers race to create")

func TestFreshKeys(t *testing.T) {
	const times = 20
	keys := *freshKeys
	everyProxy(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("1/"+far))
		// The requests for one key follow each other at once, over different
		// connections, so that workers race to create its record.
		key := func(i int) int { return i / times }
		got := s.load(16).send(t, keys*times, func(i int) request {
			return request{"/", "x-user-id", fmt.Sprint("user-", key(i))}
		})
		require.Equal(t, slices.Repeat([]int{1}, keys), perKey(t, got, keys, key))
	})
}

func TestRaisedLimitLetsTheDifferenceThrough(t *testing.T) { everyProxy(t, rows("changes")) }

// separate has proxies that only these tests share. Other tests run a filter of an earlier commit,
// which cannot read a directory with an algorithm that it does not know.
func separate(d driver) driver {
	d.name += "-algorithms"
	return d
}

func TestAlgorithms(t *testing.T) {
	each(t, func(t *testing.T, d driver) { rows("algorithms")(t, separate(d)) })
}

// Two filters of one name in one Envoy have different policies with the same rule
// names. They split and count separately.
func TestFiltersOfOneName(t *testing.T) {
	t.Parallel()
	eachEnvoy(t, func(t *testing.T, d driver) {
		first := perUser("5/" + far)
		second := perUser("50/365d")
		s := siteOf(t, d)
		both := s.listen(t, proxyOptions{policy: first, edit: func(bootstrap []byte) []byte {
			return withSecondListener(t, bootstrap, s.inDomain(second))
		}})
		// Both count at first. The older one notices the conflict because it still gets
		// requests some seconds after the newer one has begun to count.
		round := func(key string) [2]int {
			passed, otherPassed := 0, 0
			for range 10 {
				passed += count(both[0].load(4).send(t, 20, user(key)), allowed)
				otherPassed += count(both[1].load(4).send(t, 20, user(key)), allowed)
			}
			return [2]int{passed, otherPassed}
		}
		rounds := 0
		apart := func() bool {
			rounds++
			return round(fmt.Sprint("early-", rounds)) == [2]int{5, 50}
		}
		require.Eventually(t, apart, time.Minute, time.Second)
		// All workers know it by their next tick.
		time.Sleep(2 * time.Second)
		for i := range 3 {
			require.Equal(t, [2]int{5, 50}, round(fmt.Sprint("late-", i)))
		}
	})
}

// withSecondListener adds a listener with a filter of the same name and another
// policy.
func withSecondListener(t *testing.T, bootstrap []byte, policy string) []byte {
	return edited(t, bootstrap, func(static object) {
		edited(t, bootstrapOf(t, policy), func(second object) {
			static["listeners"] = append(listenersOf(static), listenersOf(second)[0])
		})
	})
}
