package xds

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Managed is where a connected proxy says that it answers management requests.
type Managed struct {
	SAN     string // name in its certificate, empty where none is asked for
	Node    string
	Address string // as its metadata has it, empty if it has none
	Peer    string // the address it is connected from
	Runs    uint64 // the revision it accepted last, 0 if none
}

// Managed returns the connected proxies that ask for the policy, by node id. A
// process with several streams is there once; processes that share an identity
// and differ in their address are there each.
func (l *Ledger) Managed() []Managed {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []Managed
	for _, id := range slices.SortedFunc(maps.Keys(l.proxies), store.Identity.Compare) {
		var own []Managed
		// The youngest first: it is what the proxy runs after a hot restart.
		sessions := slices.SortedFunc(maps.Values(l.proxies[id].sessions), func(a, b *session) int { return cmp.Compare(b.id, a.id) })
		for _, s := range sessions {
			known := func(m Managed) bool { return m.Address == s.node.manage }
			if s.subscribed && !slices.ContainsFunc(own, known) {
				own = append(own, Managed{SAN: id.SAN, Node: id.Node, Address: s.node.manage, Peer: s.peer, Runs: s.runs})
			}
		}
		list = append(list, own...)
	}
	return list
}
