package quotaservice

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestUnreadAnswers: a stream ends whose answers nobody reads, sooner where there are
// many such streams; one that reads goes on.
func TestUnreadAnswers(t *testing.T) {
	var m quota.Asks
	for range 100 {
		m.Asks = append(m.Asks, quota.Ask{Parts: []quota.Part{{Definition: 1, Inspect: true}}})
	}
	for _, streams := range []int{1, 50, 400} {
		b := newRig(t)
		d := define(1, quota.LeaseOff, fixed(10, minute))
		honest := b.proxy(b.service, d)
		var unread []*proxy
		for range streams {
			unread = append(unread, b.proxy(b.service, d))
		}
		ended := 0
		for n := 0; ended < streams; n++ {
			require.Less(t, n, 500)
			for _, p := range unread {
				if p.closed {
					continue
				}
				if err := p.send(m); err != nil {
					require.Equal(t, codes.ResourceExhausted, status.Code(err))
					require.True(t, p.unread.Load())
					p.Close()
					ended++
				}
			}
			require.NoError(t, honest.send(m))
			require.NotEmpty(t, honest.take())
			require.LessOrEqual(t, b.service.unsent.used, b.service.unsent.total+(streams+1)*b.service.unsent.least)
		}
		require.EqualValues(t, streams, b.service.count.unread.Load())
	}
}

// TestKeptIsBounded: what a service remembers of streams is bounded in bytes, each in its
// share of them, and all of it is free when they have closed.
func TestKeptIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	b := newRig(t)
	s := b.service
	var windows []limit.Window
	for i := range quota.MaxWindows {
		windows = append(windows, limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: 1e9, PeriodNs: minute + int64(i)})
	}
	var all []*proxy
	for range 40 {
		all = append(all, b.proxy(s))
	}
	for n := range 60_000 {
		p := all[random.IntN(len(all))]
		d := define(random.Uint32N(2000), quota.LeaseAuto, windows...)
		part := quota.Part{Definition: d.ID, Cost: 1, Key: quota.KeyOf(uint64(n%5000), 0)}
		require.NoError(t, p.send(quota.Asks{Definitions: []quota.Definition{d}, Asks: []quota.Ask{{Parts: []quota.Part{part}}}}))
		require.Equal(t, quota.Granted, p.take()[0].Result)
		require.LessOrEqual(t, p.kept, s.kept.most)
	}
	require.LessOrEqual(t, s.kept.used, s.kept.total*11/10)
	for _, p := range all {
		require.NotEmpty(t, p.grants)
		kept := map[*definition]bool{}
		bytes := 0
		for i := range p.grants {
			bytes += p.grants[i].bytes()
			kept[p.grants[i].definition] = true
		}
		for _, d := range p.definitions {
			kept[d] = true
		}
		for d := range kept {
			bytes += d.bytes()
		}
		require.Equal(t, bytes, p.kept)
		p.Close()
	}
	require.Zero(t, s.kept.used)
	require.Zero(t, s.open.used)
	require.Zero(t, s.unsent.used)
}

// TestPieces: a message in pieces says what it said at once.
func TestPieces(t *testing.T) {
	var m quota.Asks
	for i := range uint32(100) {
		m.Asks = append(m.Asks, quota.Ask{ID: i, Parts: []quota.Part{{Definition: i}}})
		m.Returns = append(m.Returns, quota.Return{Grant: i})
	}
	text := m.Append(nil)
	for size := 1; size < 2*len(text); size += 7 {
		var got, of quota.Asks
		for piece, rest := cut(text, size); len(piece) > 0; piece, rest = cut(rest, size) {
			require.NoError(t, of.Decode(piece))
			got.Asks, got.Returns = append(got.Asks, of.Asks...), append(got.Returns, of.Returns...)
			of = quota.Asks{}
		}
		require.Equal(t, text, got.Append(nil))
	}
	broken := text[:len(text)-1]
	piece, rest := cut(broken, len(broken))
	require.Equal(t, message(broken), piece, "its reader says so")
	require.Empty(t, rest)
}
