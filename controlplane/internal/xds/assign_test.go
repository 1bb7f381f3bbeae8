package xds

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// applyTo is apply for a policy of proxies with that in their node ids.
func (f *fixture) applyTo(policy, nodes, domain string) uint64 {
	f.t.Helper()
	return f.add(domain, store.Draft{Policy: policy, Proxies: &selector.Selector{Node: nodes}})
}

// A revision that is refused in one policy is nothing to another.
func TestPoliciesStandAlone(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.applyTo("edge", "edge-*", "edge 1")
		edge, core := f.proxy("edge-1"), f.proxy("core-1")
		accept("edge 1", edge)
		f.state("core-1", "no policy is for it: its bootstrap decides")
		f.apply("default 1")
		accept("default 1", core)
		f.applyTo("edge", "edge-*", "edge 2")
		edge.refuse("edge 2", "edge 1")
		f.restart()
		edge.connect()
		core.connect()
		idle(core, edge)
		f.state("core-1", "connected")
		require.Equal(t, []uint64{1, 2}, []uint64{f.ledger.ForNewProxy("edge"), f.ledger.ForNewProxy("default")})
	})
}

// Whom a policy is for may change with each revision: those that are there move at once,
// and a rollout waits for the right ones.
func TestARevisionMovesProxies(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("default 1")
		a, b := f.proxy("edge-a"), f.proxy("edge-b")
		accept("default 1", a, b)
		two := f.applyTo("edge", "edge-a", "edge 1")
		accept("edge 1", a)
		idle(b)
		require.Equal(t, []ProxyOutcome{{Node: "edge-a", Revision: 2, Outcome: Acked}}, f.outcomes(two))
		f.applyTo("edge", "edge-b", "edge 2")
		accept("default 1", a)
		accept("edge 2", b)
		f.runs("edge-a edge-b", 1, 3)
		require.Equal(t, "default", f.status("edge-a").Policy)

		// One that moves away does not hold up a rollout.
		four := f.applyTo("edge", "edge-b", "edge 3")
		held := b.expect("edge 3")
		done := make(chan []ProxyOutcome, 1)
		go func() { done <- f.ledger.Follow(t.Context(), four, func(ProxyOutcome) {}) }()
		f.applyTo("edge", "edge-c", "edge 4")
		require.Empty(t, <-done)
		b.ack(held)
		accept("default 1", b)
	})
}

// A proxy that a revision moves is asked even where another has refused that by then: it was there. One
// that is moved to an older revision which is withheld is not.
func TestRefusalsBesideMoves(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.apply("default 1")
		a, b := f.proxy("a"), f.proxy("b")
		accept("default 1", a)
		held := b.expect("default 1")
		f.applyTo("all", "*", "all 1")
		a.nack(a.expect("all 1"))
		b.ack(held)
		accept("all 1", b)
		f.applyTo("all", "b", "all 2")
		accept("all 2", b)
		accept("default 1", a)
		f.apply("default 2")
		a.refuse("default 2", "default 1")
		f.applyTo("all", "c", "all 3")
		accept("default 1", b)
	})
}

// What proxies have replied to a revision.
const (
	pending  = ""
	accepted = "a"
	refused  = "r"
	mixed    = "ar"
)

var offers = []struct {
	name    string
	history []string // revision 1, 2, …
	proxy   stance
	want    uint64
}{
	{"no revision", nil, stance{}, 0},
	{"no proxy has replied: a fresh proxy gets the newest", []string{pending, pending}, stance{Since: 2}, 2},
	{"accepted newest", []string{accepted, accepted}, stance{Since: 2}, 2},
	{"applied while no proxy was there", []string{accepted, pending}, stance{Since: 2}, 2},

	{"refused newest is withheld from those who come later", []string{accepted, refused}, stance{Since: 2}, 1},
	{"but not from those who were there", []string{accepted, refused}, stance{Since: 1}, 2},
	{"nor once someone accepted it", []string{accepted, mixed}, stance{Since: 2}, 2},
	{"two refused in a row", []string{accepted, refused, refused}, stance{Since: 3}, 1},
	{"withheld: what no proxy has replied is no last good", []string{accepted, pending, refused}, stance{Since: 3}, 1},
	{
		"withheld, nothing accepted: the newest that none refused",
		[]string{pending, pending, refused}, stance{Since: 3}, 2,
	},
	{"all refused", []string{refused, refused}, stance{Since: 2}, 0},
	{
		"one that comes later runs an old one: last good of the fleet",
		[]string{accepted, accepted, refused}, stance{Acked: 1, Since: 3}, 2,
	},

	{
		"refused by this proxy: back to its own",
		[]string{accepted, accepted, mixed}, stance{Acked: 1, Refused: []uint64{3}, Misses: 1}, 1,
	},
	{"the same once it has confirmed", []string{accepted, accepted, mixed}, stance{Acked: 1, Refused: []uint64{3}}, 1},
	{
		"refused by this proxy, it never accepted any",
		[]string{accepted, accepted, refused}, stance{Refused: []uint64{3}, Misses: 1}, 2,
	},
	{"the very first one refused", []string{refused}, stance{Refused: []uint64{1}, Misses: 1}, 0},
	{
		"the next revision after a refusal",
		[]string{accepted, refused, pending}, stance{Acked: 1, Refused: []uint64{2}, Since: 1}, 3,
	},
	{
		"a newer one withheld does not move a proxy off its own",
		[]string{accepted, accepted, mixed, refused}, stance{Acked: 1, Refused: []uint64{3}, Since: 4}, 1,
	},

	{
		"last good refused too: left alone",
		[]string{accepted, accepted, refused}, stance{Acked: 2, Refused: []uint64{3, 2}, Misses: 2}, 0,
	},
	{
		"until there is a new one",
		[]string{accepted, accepted, refused, pending}, stance{Acked: 2, Refused: []uint64{3, 2}, Misses: 2}, 4,
	},
}

func TestWhichRevisionAProxyIsOffered(t *testing.T) {
	for _, tc := range offers {
		t.Run(tc.name, func(t *testing.T) {
			known := new(track)
			for i, h := range tc.history {
				known.revisions = append(known.revisions, store.Summary{
					Number: uint64(i + 1), Acked: h == accepted || h == mixed, Nacked: h == refused || h == mixed,
				})
			}
			require.Equal(t, tc.want, known.offer(outsideCanaries, tc.proxy))
		})
	}
}
