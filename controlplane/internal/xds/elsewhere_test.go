package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

func (p *oneOf) change(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
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
func two(t *testing.T, test func(t *testing.T, a, b *fixture, ofA *oneOf)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
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
		var peers [2]*oneOf
		var list [2]*fixture
		for i, id := range []string{"a", "b"} {
			list[i] = &fixture{t: t, o: Options{Wasm: "/lib/sluice.wasm"}, store: s}
			peers[i] = &oneOf{Store: s, hub: h, id: id}
			list[i].serveOn(peers[i])
		}
		defer func() {
			list[1].Stop()
			list[0].halt()
		}()
		test(t, list[0], list[1], peers[0])
	})
}

// heard lets what one says reach the other.
func heard() { time.Sleep(time.Minute); synctest.Wait() }

// A proxy of one control plane is one of the other, too: what it runs, what becomes of a
// revision there, and that it went over.
func TestProxiesElsewhere(t *testing.T) {
	two(t, func(t *testing.T, a, b *fixture, ofA *oneOf) {
		b.apply("first")
		near := b.proxy("near")
		far, far2 := a.proxy("far"), a.proxy("far-2")
		accept("first", near, far, far2)
		heard()
		for _, node := range []string{"near", "far", "far-2"} {
			for _, f := range []*fixture{a, b} {
				f.state(node, "connected")
				f.runs(node, 1)
			}
		}
		require.Equal(t, []bool{true, false}, []bool{b.status("far").Elsewhere, b.status("near").Elsewhere})
		require.Equal(t, 3, b.ledger.Connected(""))
		require.Len(t, b.ledger.Managed(), 3)
		require.True(t, b.ledger.inUse()[1])

		outcomes, missing := make(chan ProxyOutcome, 10), make(chan []ProxyOutcome)
		follow := func(number uint64) (leave func()) {
			ctx, leave := context.WithCancel(t.Context())
			go func() { missing <- b.ledger.Follow(ctx, number, func(o ProxyOutcome) { outcomes <- o }) }()
			return leave
		}
		second := b.apply("second") // is waited for on a, too
		follow(second)
		accept("second", near)
		heard()
		require.Equal(t, "near", (<-outcomes).Node)
		require.Empty(t, outcomes, "no other has replied")
		far.refuse("second", "first")
		require.Equal(t, Nacked, (<-outcomes).Outcome)
		accept("second", far2)
		require.Equal(t, ProxyOutcome{Node: "far-2", Revision: second, Outcome: Acked}, <-outcomes)
		require.Empty(t, <-missing)
		heard()
		require.Equal(t, []uint64{second}, b.status("far").Refused)
		require.Equal(t, second, a.ledger.ForNewProxy("default"), "others accepted it")

		// a ends without a word; one of its proxies goes over before b learns of that.
		ofA.change(func() { ofA.mute = true })
		fourth := b.apply("fourth")
		far.refuse("fourth", "first") // a tells nobody
		accept("fourth", far2, near)
		heard()
		far.goOver(b)
		idle(far)
		require.False(t, b.status("far").Elsewhere)
		require.Equal(t, []uint64{second, fourth}, b.status("far").Refused, "what it refused elsewhere, as the store has it")
		require.Equal(t, 3, b.ledger.Connected(""), "each counts once")
		leave := follow(b.apply("fifth"))
		accept("fifth", near, far)
		require.ElementsMatch(t, []string{"near", "far"}, []string{(<-outcomes).Node, (<-outcomes).Node})
		ofA.end()
		heard()
		require.False(t, b.status("far-2").Connected)
		leave()
		left := <-missing
		require.Len(t, left, 1)
		require.Equal(t, []any{"far-2", Disconnected}, []any{left[0].Node, left[0].Outcome})
	})
}

// What could not be told is told again without another change, and a telling that writes
// much is followed by a pause.
func TestTellingAgain(t *testing.T) {
	two(t, func(t *testing.T, a, b *fixture, ofA *oneOf) {
		a.apply("first")
		far := a.proxy("far")
		heard()
		ofA.change(func() { ofA.fails = 1 })
		accept("first", far)
		heard()
		b.runs("far", 1)
		before := ofA.tells
		ofA.change(func() { ofA.wrote = tellBytes / 2 })
		for range 200 { // for 2 s
			a.ledger.change(func() {})
			time.Sleep(10 * time.Millisecond)
		}
		require.InDelta(t, 4, ofA.tells-before, 1)
	})
}

// A large fleet is told in parts that etcd takes, and a proxy stays in its part.
func TestTellingInParts(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.ledger
		random := rand.New(rand.NewPCG(1, 2))
		add := func(from, to, size int) {
			for i := from; i < to; i++ {
				text := make([]byte, size)
				for j := range text {
					text[j] = byte(' ' + 1 + random.IntN(90))
				}
				id := fmt.Sprint("n", i)
				n := node{Place: selector.Proxy{Node: id}, Version: string(text)}
				l.open(uint64(ownIDs+i), n, fmt.Sprint("10.0.0.1:", i+1))
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
		other := copied(f)
		defer func() { other.halt() }()
		require.NoError(t, other.ledger.hear(from))
		require.Len(t, other.ledger.proxies, 60)
	})
}

// Of two sessions of a process the younger counts; once that has ended, so does the other.
func TestOlderElsewhere(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		e, l := f.proxy("n"), f.ledger
		older := facts{
			node: node{Place: selector.Proxy{Node: "n"}}, Peer: "127.0.0.1:9", Connected: time.Now().Add(-time.Hour),
		}
		from := map[string][]byte{"a/0": pack([]told{{store.Proxy{Node: "n"}, older}})}
		require.NoError(t, l.hear(from))
		require.Equal(t, 1, f.state("n", noPolicy).Streams)
		e.hangUp()
		require.NoError(t, l.hear(from))
		require.True(t, f.status("n").Elsewhere)
	})
}

// Another control plane tells of a few replies. What a proxy holds it has accepted.
func TestOutcomeWithoutTheReply(t *testing.T) {
	known := &track{revisions: []store.Summary{{Number: 1, Acked: true}, {Number: 2, Acked: true, Nacked: true}}}
	s := session{track: known, facts: facts{Subscribed: true, stance: stance{Acked: 2}, Runs: 2, Holds: 2}}
	require.Equal(t, Acked, s.outcome(2))
	replies := map[uint64]bool{1: true, 2: true, 3: true, 4: false, 5: true, 6: true}
	require.Equal(t, map[uint64]bool{3: true, 4: false, 5: true, 6: true}, latest(replies))
}
