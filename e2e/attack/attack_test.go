package attack

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An exact limiter denies no honest client and admits no cheater beyond the limit. A
// limiter that forgets keys during a flood does, and Judge counts it.
func TestJudge(t *testing.T) {
	p := Plan{Flood: 5000, Limit: 10, Honest: 20, Cheaters: 3, Bursts: 4}
	l := NewList(p)
	require.Equal(t, 5000+20*5+3*4*15, l.Len())

	used, keys := map[string]int{}, map[string]bool{}
	exact := func(i int) bool {
		keys[l.Key(i)] = true
		used[l.Key(i)]++
		return used[l.Key(i)] <= p.Limit
	}
	require.Equal(t, Outcome{Sent: l.Len(), HonestSent: 100, CheaterMax: 10}, l.Judge(exact))
	require.Len(t, keys, 5000+20+3)

	clear(used)
	forgetful := func(i int) bool {
		if i%1000 == 0 {
			clear(used)
		}
		return exact(i)
	}
	o := l.Judge(forgetful)
	require.Equal(t, 40, o.CheaterMax)
	require.Equal(t, 3, o.OverLimit)
	require.Zero(t, o.HonestDenied)

	p.Windows, p.Cheaters = 3, 0
	require.Equal(t, 5000+20*15, NewList(p).Len())

	o = l.Judge(func(int) bool { return false })
	require.Equal(t, Outcome{Sent: l.Len(), HonestSent: 100, HonestDenied: 100, FloodDenied: 5000}, o)
	require.InDelta(t, 100, o.FalselyDenied(), 0)
}
