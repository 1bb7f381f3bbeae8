package origin_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/origin"
)

func TestOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "192.0.2.1": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64", "2001:db8:1:2::ffff": "2001:db8:1:2::/64",
		"[fe80::1%2]:80": "fe80::/64",
		"":               "", "/run/manage.sock": "", "192.0.2.1:x": "",
	} {
		require.Equal(t, want, origin.Of(address), address)
	}
}

// However many guess, nobody else is refused, and whoever was is looked at again after a
// second.
func TestGuesses(t *testing.T) {
	const now, second = int64(5e9), int64(1e9)
	var g origin.Guesses
	for range origin.MaxGuesses {
		require.False(t, g.Refuses("a", now))
		g.Add("a", now)
	}
	require.True(t, g.Refuses("a", now+second-1))
	require.False(t, g.Refuses("b", now))
	require.False(t, g.Refuses("a", now+second))
	require.False(t, g.Refuses("a", now-1), "the clock was set back")
	g.Add("a", now+second)
	require.False(t, g.Refuses("a", now+second), "it is the first of another second")
	for i := range 10_000 {
		g.Add(strconv.Itoa(i), now)
	}
	require.False(t, g.Refuses("c", now))
}
