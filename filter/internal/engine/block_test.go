package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// overtaken is a proxy in which another worker acts before a worker writes.
type overtaken struct {
	*hosttest.Proxy
	other func() // once
}

func (p *overtaken) Set(key, value []byte, cas uint32) state.Status {
	if act := p.other; act != nil {
		p.other = nil
		act()
	}
	return p.Proxy.Set(key, value, cas)
}

// TestOnlyTheFirstDenialBlocks: of two workers that deny a key at once, the one that loses the race
// writes nothing, and tells its client the wait that the other one has written.
func TestOnlyTheFirstDenialBlocks(t *testing.T) {
	const rules = `{"name":"a","limits":["1/1m"],"block":"1h"}`
	p := hosttest.New()
	host := &overtaken{Proxy: p}
	winner, loser := compileJSON(t, p, rules), compileJSON(t, host, rules)
	require.True(t, loser.Decide().Allowed)
	written := uint32(0)
	host.other = func() {
		require.Equal(t, "a=denied:limit 1 1h0m0s", said(winner.Decide()))
		written = p.CAS
	}
	p.Clock += int64(time.Second)
	require.Equal(t, "a=denied:limit 1 1h0m0s", said(loser.Decide()))
	require.Equal(t, written, p.CAS)
	require.EqualValues(t, 1, series(winner)["default a: blocks_begun"])
	require.Zero(t, series(loser)["default a: blocks_begun"])
}

// TestAFloodOfBlockedKeys: somebody has invented keys blocked. While the table drops none of them, nobody
// else is blocked. Then all keys without a record are that share a page with one that it dropped.
func TestAFloodOfBlockedKeys(t *testing.T) {
	const rule = `{"name":"a",` + keyed + `,"capacity":16384,"limits":["1/1m"],"block":"1h"}`
	for _, c := range []struct{ invented, blocked int }{{8192, 0}, {16384, 26}, {32768, 972}} {
		p := hosttest.New()
		e := compileJSON(t, p, rule)
		request := func(user string) (word string) {
			p.With("u", user)
			p.Calls = p.Calls[:0]
			return string(respond.AppendWord(nil, e.Decide()))
		}
		for i := range c.invented {
			user := fmt.Sprint("invented-", i)
			request(user)
			request(user)
		}
		p.Clock += int64(time.Minute)
		blocked := 0
		for i := range 1000 {
			if request(fmt.Sprint("honest-", i)) == "a=denied:blocked" {
				blocked++
			}
		}
		require.Equal(t, c.blocked, blocked, "of 1000 clients, after %d invented keys", c.invented)
	}
}
