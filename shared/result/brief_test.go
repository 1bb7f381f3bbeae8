package result_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/result"
)

func TestBrief(t *testing.T) {
	b := result.AppendBrief(nil, "per-user", "limit", false, true, 3)
	b = result.AppendBriefPart(b, "", "alice")
	b = result.AppendBriefMissing(b)
	b = result.AppendBriefPart(b, "client_ip", "192.0.2.7")
	whole := result.AppendBrief(b, "all", "", true, false, 0)
	require.Equal(t, "\x03\x08per-user\x05limit\x03\x06alice\x00\x14client_ip=192.0.2.7\x00\x03all\x00\x00", string(whole))

	first, rest, ok := result.CutBrief(whole)
	require.True(t, ok)
	require.Equal(t, "per-user", string(first.Rule))
	require.Equal(t, "limit", string(first.Reason))
	require.False(t, first.Allowed)
	require.True(t, first.Shadow)
	parts := first.KeyParts()
	require.Equal(t, "alice", *parts[0])
	require.Nil(t, parts[1])
	require.Equal(t, "client_ip=192.0.2.7", *parts[2])

	second, rest, ok := result.CutBrief(rest)
	require.True(t, ok)
	require.True(t, second.Allowed)
	require.Empty(t, second.KeyParts())
	require.Empty(t, rest)

	for i := range b { // of every damage, none is read as a brief
		_, _, ok := result.CutBrief(b[:i])
		require.False(t, ok, i)
	}
	empty, _, ok := result.CutBrief(result.AppendBriefPart(result.AppendBrief(nil, "r", "", true, false, 1), "", ""))
	require.True(t, ok)
	require.Empty(t, *empty.KeyParts()[0])
}
