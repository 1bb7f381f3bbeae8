package xds

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// hub is what several control planes on one store tell each other.
type hub struct {
	mu      sync.Mutex
	told    map[string][]byte
	changed chan struct{}
	marked  chan struct{} // closed and replaced when a revision is appended or marked
}

// oneOf is one of them. It is gone without a word while it is mute.
type oneOf struct {
	store.Store
	*hub
	id   string
	mute bool
}

func (p *oneOf) Tell(_ context.Context, proxies []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mute && string(p.told[p.id]) != string(proxies) {
		p.told[p.id] = proxies
		p.wake()
	}
	return nil
}

func (p *oneOf) SaveReply(ctx context.Context, r store.Reply) error {
	defer p.mark()
	return p.Store.SaveReply(ctx, r)
}

func (h *hub) mark() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.marked)
	h.marked = make(chan struct{})
}

func (p *oneOf) Appended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.marked
}

func (p *oneOf) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *oneOf) Told() (map[string][]byte, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := maps.Clone(p.told)
	delete(others, p.id)
	return others, p.changed
}

// end is the end of its lease.
func (p *oneOf) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = true
	delete(p.told, p.id)
	p.wake()
}

// two are control planes on one store.
func two(t *testing.T) (a, b *fixture, ofA *oneOf) {
	t.Helper()
	s, err := store.Open(t.TempDir())
	require.NoError(t, err)
	h := &hub{told: map[string][]byte{}, changed: make(chan struct{}), marked: make(chan struct{})}
	go func() {
		for t.Context().Err() == nil {
			select {
			case <-s.Appended():
				h.mark()
			case <-t.Context().Done():
			}
		}
	}()
	var peers []*oneOf
	var list []*fixture
	for _, id := range []string{"a", "b"} {
		f := &fixture{t: t, wasm: "/lib/sluice.wasm", log: slog.New(slog.DiscardHandler), store: s}
		peers = append(peers, &oneOf{Store: s, hub: h, id: id})
		f.serve(peers[len(peers)-1])
		list = append(list, f)
	}
	t.Cleanup(func() {
		for _, f := range list {
			f.server.Stop()
			f.grpc.GracefulStop()
		}
		require.NoError(t, s.Close())
	})
	return list[0], list[1], peers[0]
}

// A proxy of one control plane is one of the other, too: what it runs, what becomes of a
// revision there, and that it went over.
func TestProxiesElsewhere(t *testing.T) {
	a, b, ofA := two(t)
	first := b.apply("first")
	near, far := b.proxy("near"), a.proxy("far")
	near.accept("first")
	far.accept("first")
	far2 := a.proxy("far-2")
	far2.accept("first")
	for _, node := range []string{"near", "far", "far-2"} {
		for _, f := range []*fixture{a, b} {
			f.eventually(node+" runs it", func() bool {
				for _, p := range f.server.Ledger().Proxies() {
					if p.Node == node {
						return p.Runs == first && p.State == "connected"
					}
				}
				return false
			})
		}
	}
	require.True(t, b.status("far").Elsewhere)
	require.False(t, b.status("near").Elsewhere)
	require.Equal(t, 3, b.server.Ledger().Connected(""))
	require.Len(t, b.server.Ledger().Managed(), 3)

	// apply on b waits for those of a.
	second := b.apply("second")
	outcomes := make(chan ProxyOutcome, 10)
	missing := make(chan []ProxyOutcome)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { missing <- b.server.Ledger().Follow(ctx, second, func(o ProxyOutcome) { outcomes <- o }) }()
	near.accept("second")
	require.Equal(t, "near", (<-outcomes).Node)
	select {
	case o := <-outcomes:
		t.Fatal("nobody else has answered", o)
	case <-time.After(4 * tellEvery):
	}
	far.refuse("second")
	far.accept("first")
	require.Equal(t, Nacked, (<-outcomes).Outcome)
	far2.accept("second")
	last := <-outcomes
	require.Equal(t, []any{"far-2", Acked}, []any{last.Node, last.Outcome})
	require.Empty(t, <-missing)
	cancel()
	b.eventually("b knows what far refused", func() bool { return len(b.status("far").Refused) == 1 })
	b.eventually("and a that others accepted it", func() bool { return a.server.Ledger().Current("default") == second })

	// a ends without a word; one of its proxies goes over before b learns of that.
	ofA.mu.Lock()
	ofA.mute = true
	ofA.mu.Unlock()
	fourth := b.apply("fourth")
	far.refuse("fourth") // a tells nobody
	far.accept("first")
	far2.accept("fourth")
	near.accept("fourth")
	b.eventually("b reads it in the store", func() bool { return len(b.status("far").Refused) == 2 && !b.status("far").Unsettled })
	far.goOver(b)
	far.nothingMore()
	b.eventually("it has moved", func() bool { return !b.status("far").Elsewhere })
	require.Equal(t, []uint64{second, fourth}, b.status("far").Refused, "what it refused elsewhere")
	require.Equal(t, 3, b.server.Ledger().Connected(""), "each counts once")
	third := b.apply("third")
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { missing <- b.server.Ledger().Follow(ctx, third, func(o ProxyOutcome) { outcomes <- o }) }()
	near.accept("third")
	far.accept("third")
	one, another := <-outcomes, <-outcomes
	require.ElementsMatch(t, []string{"near", "far"}, []string{one.Node, another.Node})
	ofA.end()
	b.eventually("the other is gone", func() bool { return !b.status("far-2").Connected })
	cancel()
	left := <-missing
	require.Len(t, left, 1)
	require.Equal(t, []any{"far-2", Disconnected}, []any{left[0].Node, left[0].Outcome})
}

// What a revision would be dropped for is in use elsewhere.
func TestRevisionsInUseElsewhere(t *testing.T) {
	a, b, _ := two(t)
	number := b.apply("first")
	far := a.proxy("far")
	far.accept("first")
	b.eventually("b knows", func() bool { return b.server.Ledger().Connected("") == 1 && b.status("far").Runs == number })
	l := b.server.Ledger()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.True(t, l.inUse()[number])
}
