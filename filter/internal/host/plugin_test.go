package host

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// memory is a proxy with shared data, a clock that stands still, and requests
// without anything.
type memory struct {
	values map[string][]byte
	cas    map[string]uint32
}

func (m *memory) Get(key []byte) ([]byte, uint32, state.Status) {
	v, have := m.values[string(key)]
	if !have {
		return nil, 0, state.NotFound
	}
	return append([]byte(nil), v...), m.cas[string(key)], state.OK
}

func (m *memory) Set(key, value []byte, cas uint32) state.Status {
	if _, have := m.values[string(key)]; have && cas != m.cas[string(key)] {
		return state.Mismatch
	}
	m.values[string(key)] = append([]byte(nil), value...)
	m.cas[string(key)]++
	return state.OK
}

func (*memory) Now() int64                                 { return 1_000_000_000_000_000_000 }
func (*memory) Header(string) (string, bool)               { return "", false }
func (*memory) JoinedHeader(string) (string, bool)         { return "", false }
func (*memory) AppendHeader(v []string, _ string) []string { return v }
func (*memory) ClientAddress() (string, bool)              { return "", false }
func (*memory) Attribute(string) (string, bool)            { return "", false }
func (*memory) Counted(string, string) uint64              { return 0 }

// configured is a configuration of the owner with a policy of its own, made at
// that time.
func configured(t *testing.T, m *memory, owner, text uint64, madeNs int64) *plugin {
	doc, err := policy.ParseJSON(fmt.Appendf(nil, `{"version":1,"rules":[{"name":"r%d","limits":["9000000/1h"],"lease":8}]}`, text))
	require.NoError(t, err)
	pol, problems, _ := policy.Read(doc)
	require.Empty(t, problems)
	p := &plugin{identity: engine.Identity{Owner: owner, Apart: text, ConfiguredNs: madeNs, Random: func(b []byte) { clear(b) }}}
	p.engine = engine.New(pol, m, p.identity)
	return p
}

// leases reports whether the configuration takes leases.
func (p *plugin) leases() (yes bool) {
	leased := func() (n uint64) {
		p.engine.EachMetric(func(_, name string, count uint64) {
			if name == "leased" {
				n = count
			}
		})
		return n
	}
	before := leased()
	for range 4 {
		p.engine.Decide()
	}
	return leased() > before
}

// A configuration takes no leases once another policy of its name has come after
// it, and takes them again when the last of those has ended.
func TestLeasesOfSiblings(t *testing.T) {
	running = nil
	t.Cleanup(func() { running = nil })
	m := &memory{map[string][]byte{}, map[string]uint32{}}
	first, stranger := configured(t, m, 1, 11, 1), configured(t, m, 2, 19, 1)
	second, third, again := configured(t, m, 1, 12, 2), configured(t, m, 1, 13, 3), configured(t, m, 1, 11, 4)
	apart := func(p *plugin) func() {
		return func() {
			p.engine.Part()
			if p.engine.Confirm() {
				allotLeases(p.identity.Owner)
			}
		}
	}
	stranger.enlist()
	for _, step := range []struct {
		name   string
		do     func()
		leases []*plugin // of those that run
	}{
		{"one", first.enlist, []*plugin{first}},
		{"another one", second.enlist, []*plugin{second}},
		{"a third", third.enlist, []*plugin{third}},
		{"the one in the middle ends", second.delist, []*plugin{third}},
		{"the third ends", third.delist, []*plugin{first}},
		{"a third again", third.enlist, []*plugin{third}},
		{"the first one's policy again", again.enlist, []*plugin{again}},
		{"that ends", again.delist, []*plugin{third}},
		{"the first one counts apart", apart(first), []*plugin{first, third}},
		{"another one comes", second.enlist, []*plugin{first, second}},
		{"that one counts apart", apart(second), []*plugin{first, second, third}},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do()
			for _, p := range running {
				want := p == stranger || slices.Contains(step.leases, p)
				require.Equal(t, want, p.leases(), "policy %d of owner %d", p.identity.Apart, p.identity.Owner)
			}
		})
	}
}
