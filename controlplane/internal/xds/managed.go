package xds

import (
	"maps"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Managed is a connected proxy and where it says that it answers management
// requests.
type Managed struct {
	SAN     string // name in its certificate, empty where none is asked for
	Node    string
	Policy  string // that is for it
	Address string // as its metadata has it, empty if it has none
	Quota   string // its cluster of the quota service, likewise
	Peer    string // the address it is connected from
	Runs    uint64 // the revision it accepted last, 0 if none
}

// Managed returns the connected proxies that subscribe to the policy, by node id.
// A process with several streams is listed once, and so is each process of an
// identity that has an address of its own.
func (l *Ledger) Managed() []Managed {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []Managed
	for _, id := range slices.SortedFunc(maps.Keys(l.proxies), store.Identity.Compare) {
		var own []Managed
		// The youngest first: it is what the proxy runs after a hot restart.
		for _, s := range slices.Backward(l.proxies[id].sorted()) {
			known := func(m Managed) bool { return m.Address == s.Manage }
			if s.Subscribed && !slices.ContainsFunc(own, known) {
				own = append(own, Managed{SAN: id.SAN, Node: id.Node, Policy: s.track.name, Address: s.Manage, Quota: s.Quota, Peer: s.Peer, Runs: s.Runs})
			}
		}
		list = append(list, own...)
	}
	return list
}
