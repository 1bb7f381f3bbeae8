package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRaisedLimitLetsTheDifferenceThrough(t *testing.T) {
	everyProxy(t, func(t *testing.T, d driver) {
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
