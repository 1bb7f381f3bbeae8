package console

import (
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
