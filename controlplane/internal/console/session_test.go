package console

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
)

func TestSessionsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	s := newSessions(func() time.Time { return now })
	digest := func(i int) access.Digest { return access.Digest{byte(i), byte(i >> 8)} }
	open := func(id string) bool {
		_, ok := s.resume(t.Context(), id)
		return ok
	}
	first := s.begin(digest(0))
	now = now.Add(time.Second)
	for range maxOfToken {
		s.begin(digest(1))
	}
	second := s.begin(digest(1))
	require.Len(t, s.byID, 1+maxOfToken)
	require.True(t, open(first))
	now = now.Add(time.Second)
	for i := range maxSessions {
		s.begin(digest(2 + i))
	}
	require.Len(t, s.byID, maxSessions)
	require.False(t, open(first))
	require.False(t, open(second))
	require.False(t, open(""))
	last := s.begin(digest(1))
	require.True(t, open(last))
	now = now.Add(sessionTime)
	require.False(t, open(last))
}

func TestGuessesAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	g := newGuesses(func() time.Time { return now })
	show := func(address string, wrong bool) int {
		_, err := g.try(address, func() (bool, error) { return wrong, nil })
		if isCode(err, http.StatusTooManyRequests) {
			return http.StatusTooManyRequests
		}
		require.NoError(t, err)
		return http.StatusOK
	}
	guess := func(address string) int { return show(address, true) }

	for range 3 * guessesAtOnce { // right ones cost nothing
		require.Equal(t, http.StatusOK, show("192.0.2.1:1", false))
	}
	for range guessesAtOnce {
		require.Equal(t, http.StatusOK, guess("192.0.2.1:1"))
	}
	require.Equal(t, http.StatusTooManyRequests, guess("192.0.2.1:2"), "another port is the same visitor")
	require.Equal(t, http.StatusTooManyRequests, show("192.0.2.1:2", false))
	require.Equal(t, http.StatusOK, show("192.0.2.2:1", false), "others go on")
	now = now.Add(time.Second)
	require.Equal(t, http.StatusOK, show("192.0.2.1:1", false), "a right token waits a second")
	require.Equal(t, http.StatusOK, guess("192.0.2.1:1"))
	require.Equal(t, http.StatusTooManyRequests, guess("192.0.2.1:1"))

	for i := range guessesAtOnce {
		require.Equal(t, http.StatusOK, guess(fmt.Sprintf("[2001:db8:1::%x]:1", i)))
	}
	require.Equal(t, http.StatusTooManyRequests, guess("[2001:db8:1::ffff]:1"), "a network of IPv6 is one visitor")
}

// However many addresses guess, they lock nobody else out.
func TestGuessersAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	g := newGuesses(func() time.Time { return now })
	for i := range 10 * maxGuessers {
		wrong, err := g.try(fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255), func() (bool, error) { return true, nil })
		require.NoError(t, err)
		require.True(t, wrong)
		require.LessOrEqual(t, len(g.of), maxGuessers)
	}
	wrong, err := g.try("192.0.2.1:1", func() (bool, error) { return false, nil })
	require.NoError(t, err)
	require.False(t, wrong)
}

// Somebody who guesses is told to wait, and the log says so without the token.
func TestLoginTakesFewWrongTokens(t *testing.T) {
	var log bytes.Buffer
	f := newLoggedFixture(t, true, slog.New(slog.NewTextHandler(&log, nil)))
	b := f.browser()
	const guess = "a-guess-that-no-log-shows"
	codes := map[int]int{}
	for range 2 * guessesAtOnce {
		code, text := b.post("/console/login", url.Values{"token": {guess}})
		require.NotContains(t, text, guess)
		codes[code]++
	}
	require.GreaterOrEqual(t, codes[http.StatusUnauthorized], guessesAtOnce)
	require.Positive(t, codes[http.StatusTooManyRequests], "%v", codes)
	require.Contains(t, log.String(), "too many wrong tokens")
	require.NotContains(t, log.String(), guess)
	require.Eventually(t, func() bool {
		code, _ := b.post("/console/login", url.Values{"token": {token("read")}})
		return code == http.StatusOK
	}, 10*time.Second, 100*time.Millisecond, "a right token waits a second")
}
