package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
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

	tells int // how often it told
	fails int // how often it cannot
	wrote int // what it says each time
}

func (p *oneOf) Tell(_ context.Context, parts [][]byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tells++; p.fails > 0 {
		p.fails--
		return 0, errors.New("etcd is busy")
	}
	for i, part := range parts {
		if k := fmt.Sprint(p.id, "/", i); !p.mute && string(p.told[k]) != string(part) {
			p.told[k] = part
			p.wake()
		}
	}
	return p.wrote, nil
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
	maps.DeleteFunc(others, p.isOwn)
	return others, p.changed
}

// end is the end of its lease.
func (p *oneOf) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = true
	maps.DeleteFunc(p.told, p.isOwn)
	p.wake()
}

func (p *oneOf) isOwn(part string, _ []byte) bool { return strings.HasPrefix(part, p.id+"/") }

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

// What could not be told is told again without another change, and a telling that writes
// much is followed by a pause.
func TestTellingAgain(t *testing.T) {
	a, b, ofA := two(t)
	ofA.mu.Lock()
	ofA.fails = 1
	ofA.mu.Unlock()
	a.apply("first")
	a.proxy("far").accept("first")
	b.eventually("b knows all the same", func() bool { return b.server.Ledger().Connected("") == 1 && b.status("far").Runs == 1 })

	ofA.mu.Lock()
	ofA.wrote = tellBytes / 2
	before := ofA.tells
	ofA.mu.Unlock()
	l, begun := a.server.Ledger(), time.Now()
	for time.Since(begun) < 1200*time.Millisecond {
		l.mu.Lock()
		l.broadcast()
		l.mu.Unlock()
		time.Sleep(tellEvery / 5)
	}
	took := time.Since(begun)
	ofA.mu.Lock()
	defer ofA.mu.Unlock()
	require.LessOrEqual(t, ofA.tells-before, 2+int(took/(500*time.Millisecond)))
	require.Greater(t, ofA.tells, before)
}

// A large fleet is told in parts that etcd takes, and a proxy stays in its part.
func TestTellingInParts(t *testing.T) {
	l := newFixture(t).server.Ledger()
	random := rand.New(rand.NewPCG(1, 2))
	add := func(from, to, size int) {
		for i := from; i < to; i++ {
			text := make([]byte, size)
			for j := range text {
				text[j] = byte(' ' + 1 + random.IntN(90))
			}
			id := fmt.Sprint("n", i)
			_, _, err := l.open(uint64(ownIDs+i), store.Identity{Node: id}, node{id: id, version: string(text)}, fmt.Sprint("10.0.0.1:", i+1))
			require.NoError(t, err)
		}
	}
	add(0, 60, 32<<10)
	parts := l.tell()
	require.Greater(t, len(parts), 3)
	from := map[string][]byte{}
	for i, part := range parts {
		require.LessOrEqual(t, len(part), maxPart)
		from[fmt.Sprint("a/", i)] = part
	}
	add(60, 61, 1)
	changed := 0
	for i, part := range l.tell() {
		if string(part) != string(parts[i]) {
			changed++
		}
	}
	require.Equal(t, 1, changed)
	other := newFixture(t).server.Ledger()
	require.NoError(t, other.hear(from))
	require.Len(t, other.proxies, 60)
}

// Of two sessions of a process the younger counts; once that has ended, so does the other.
func TestOlderElsewhere(t *testing.T) {
	l, who := newFixture(t).server.Ledger(), store.Identity{Node: "n"}
	s, _, err := l.open(ownIDs+1, who, node{id: "n"}, "127.0.0.1:2")
	require.NoError(t, err)
	from := map[string][]byte{"a/0": pack([]told{{Place: selector.Proxy{Node: "n"}, Peer: "127.0.0.1:1", Connected: time.Now().Add(-time.Hour)}})}
	require.NoError(t, l.hear(from))
	require.Len(t, l.proxies[who].sessions, 1)
	l.close(s)
	require.NoError(t, l.hear(from))
	require.Len(t, l.proxies[who].sessions, 1)
}

// Another control plane tells of a few replies. What a proxy holds it has accepted.
func TestOutcomeWithoutTheReply(t *testing.T) {
	known := &track{revisions: []mark{{number: 1, acked: true}, {number: 2, acked: true, nacked: true}}}
	s := session{subscribed: true, track: known, stance: stance{acked: 2}, runs: 2, holds: 2, replies: map[uint64]bool{}}
	require.Equal(t, Acked, s.outcome(2))
}
