package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
