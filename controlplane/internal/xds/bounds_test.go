package xds

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

func TestStreamWithoutARequestEnds(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		silent, quick := f.named("silent"), f.proxy("quick")
		silent.dial()
		time.Sleep(firstWithin - time.Second)
		require.Empty(t, silent.ended)
		time.Sleep(time.Second)
		idle(quick) // the deadline is of the first request only
		silent.refused(codes.DeadlineExceeded, "no request within 10s")
		require.Empty(t, quick.ended)
	})
}

func TestLogLinesAreBounded(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		lines := f.logged()
		e := f.proxy("e1")
		r := request{typeURL: TypeURL, nonce: "made\nup\x1b[31m", others: 1, unserved: []string{"other"}}
		for range 400 {
			e.stream.requests <- r
		}
		settle()
		require.Equal(t, burstLines+1, strings.Count(lines.String(), "\n"), "and that the proxy is connected")
		time.Sleep(time.Second)
		e.stream.requests <- r
		settle()
		require.Contains(t, lines.String(), "omitted=")
		require.NotContains(t, lines.String(), "\x1b")
	})
}

// Kinds of proxies are theirs to make up. They share the policy's text.
func TestKindsShareThePolicy(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		number := f.apply(strings.Repeat("x", 1<<20))
		r, err := f.revision(t.Context(), number)
		require.NoError(t, err)
		for i := range 100 {
			e, err := newResponse(f.plugin(r, &node{vmID: fmt.Sprint(i)}), r, "0123456789abcdef")
			require.NoError(t, err)
			require.Same(t, &r.policy[0], &e.message.policy[0])
			require.Less(t, len(e.message.own), 8<<10)
		}
	})
}
