package quotaservice

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	ms     = 1_000_000
	minute = 60 * second
	// base is a midnight; all grids of whole seconds have a start there.
	base = 1_700_006_400 * second
)

// virtual is time that a test moves.
type virtual struct {
	now    int64
	timers []timer
}

type timer struct {
	at int64
	f  func()
}

func (v *virtual) NowNs() int64 { return v.now }

func (v *virtual) AfterFunc(ns int64, f func()) { v.timers = append(v.timers, timer{v.now + ns, f}) }

func (v *virtual) advance(ns int64) {
	v.now += ns
	due := slices.Clone(v.timers)
	v.timers = slices.DeleteFunc(v.timers, func(t timer) bool { return t.at <= v.now })
	for _, t := range due {
		if t.at <= v.now {
			t.f()
		}
	}
}

// odd is a store whose swaps a test may bend.
type odd struct {
	swapstore.Store
	bend  func(swaps []swapstore.Swap, done func(int, swapstore.Result)) bool // true = it has called done
	swaps atomic.Int64
	anew  bool        // Tend says so
	err   error       // of Tend
	late  func()      // called before Tend and Live answer
	told  func(n int) // called with what Live answers
}

func (s *odd) Tend(ctx context.Context) (int64, bool, error) {
	ns, _, _ := s.Store.Tend(ctx)
	if s.late != nil {
		s.late()
	}
	return ns, s.anew, s.err
}

func (s *odd) Live(ctx context.Context, domain string, process uint64) (int, error) {
	if s.late != nil {
		s.late()
	}
	n, err := s.Store.Live(ctx, domain, process)
	if s.told != nil {
		s.told(n)
	}
	return n, err
}

func (s *odd) Swap(ctx context.Context, swaps []swapstore.Swap, done func(int, swapstore.Result)) {
	s.swaps.Add(int64(len(swaps)))
	if s.bend == nil || !s.bend(swaps, done) {
		s.Store.Swap(ctx, swaps, done)
	}
}

// rig is a service over a memory store in virtual time.
type rig struct {
	t       testing.TB
	clock   *virtual
	memory  *swapstore.Memory
	store   *odd
	service *Service
}

func newRig(t testing.TB) *rig {
	clock := &virtual{}
	memory := swapstore.NewMemory(func() int64 { return base + clock.now })
	b := &rig{t: t, clock: clock, memory: memory, store: &odd{Store: memory}}
	b.service = b.another(0)
	return b
}

// another is another service on the same store, whose clock is apart.
func (b *rig) another(apartNs int64) *Service {
	s, err := NewService(b.t.Context(), Options{Store: b.store, Clock: &apart{b.clock, apartNs}})
	require.NoError(b.t, err)
	return s
}

type apart struct {
	*virtual
	ns int64
}

func (a *apart) NowNs() int64 { return a.now + a.ns }

// proxy is a stream to a service.
type proxy struct {
	t testing.TB
	*Stream

	ids uint32
}

func (b *rig) proxy(s *Service, definitions ...quota.Definition) *proxy {
	p := &proxy{t: b.t}
	st, err := s.Open(Peer{Address: "test"}, func() {})
	require.NoError(b.t, err)
	p.Stream = st
	require.NoError(b.t, p.send(quota.Asks{Domain: "d", Process: 1, Definitions: definitions}))
	return p
}

func (p *proxy) send(m quota.Asks) error { return p.Receive(m.Append(nil)) }

// take reads the answers that have come, once no goroutine is pumping: one that an earlier result has started may have
// taken up what the test sent.
func (p *proxy) take() []quota.AskResult {
	for isPumping := true; isPumping; {
		p.service.mu.Lock()
		isPumping = p.service.core.pumping
		p.service.mu.Unlock()
	}
	var all []quota.AskResult
	for {
		b, ok := p.Next()
		if !ok {
			return all
		}
		p.Sent()
		require.LessOrEqual(p.t, len(b), quota.MaxMessageBytes)
		var m quota.Results
		require.NoError(p.t, m.Decode(b))
		all = append(all, m.Results...)
	}
}

// ask asks for parts and returns the answer.
func (p *proxy) ask(parts ...quota.Part) quota.AskResult {
	p.t.Helper()
	p.ids++
	require.NoError(p.t, p.send(quota.Asks{Asks: []quota.Ask{{ID: p.ids, Parts: parts}}}))
	got := p.take()
	require.Len(p.t, got, 1)
	require.Equal(p.t, p.ids, got[0].ID)
	return got[0]
}

func (p *proxy) giveBack(grant, units uint32) {
	p.t.Helper()
	require.NoError(p.t, p.send(quota.Asks{Returns: []quota.Return{{Grant: grant, Units: units}}}))
}

func define(id, most uint32, windows ...limit.Window) quota.Definition {
	return quota.Definition{ID: id, Counter: [16]byte{byte(id)}, Windows: windows, Lease: most}
}

func fixed(n uint32, period int64) limit.Window {
	return limit.Window{Algorithm: limit.FixedWindow, Limit: n, PeriodNs: period}
}

func want(units uint32) quota.Part { return quota.Part{Definition: 1, Cost: units, Waiting: units} }

func (b *rig) inspect(p *proxy) quota.Standing {
	return p.ask(quota.Part{Definition: 1, Inspect: true}).Grants[0].Windows[0]
}

// hit is an operator's.
func hit(units uint32) action.Action { return &action.Take{Units: units} }
