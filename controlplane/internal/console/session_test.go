package console

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/shared/origin"
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

// Somebody who guesses is told to wait, and the log says so without the token. A right token
// from the same address, such as that of a shared ingress, gets in meanwhile.
func TestLoginTakesFewWrongTokens(t *testing.T) {
	var log bytes.Buffer
	f := newLoggedFixture(t, true, slog.New(slog.NewTextHandler(&log, nil)))
	b, signedIn := f.browser(), f.as("read")
	const guess = "a-guess-that-no-log-shows"
	guessing := func() int {
		code, text := b.post("/console/login", url.Values{"token": {guess}})
		require.NotContains(t, text, guess)
		return code
	}
	require.Equal(t, http.StatusUnauthorized, guessing())
	require.Eventually(t, func() bool { return guessing() == http.StatusTooManyRequests }, time.Minute, time.Millisecond)
	code, text := signedIn.get("/console/revisions")
	require.Equal(t, http.StatusOK, code, text)
	f.as("apply")
	require.Contains(t, log.String(), "request refused")
	require.NotContains(t, log.String(), guess)

	// A session whose token has gone leads to the form, however many others guess.
	f.setAccess("apply")
	for range 2 * origin.MaxGuesses {
		_, text = signedIn.get("/console/")
		require.Contains(t, text, "<h1>Sign in</h1>")
	}
}
