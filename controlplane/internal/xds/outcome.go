package xds

import (
	"context"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Outcome is what became of a revision at a proxy.
type Outcome string

// What may have become of it.
const (
	Waiting      Outcome = "waiting"      // no answer yet
	Disconnected Outcome = "disconnected" // gone before it answered
	Acked        Outcome = "acked"
	Superseded   Outcome = "superseded" // a newer revision came before this one was sent
	Withheld     Outcome = "withheld"   // refused elsewhere, so this proxy was not asked
	Unsent       Outcome = "unsent"     // it could not be written for this proxy
	Nacked       Outcome = "nacked"
)

// severity orders outcomes of several sessions of one proxy: the worst counts.
var severity = map[Outcome]int{Acked: 1, Superseded: 2, Withheld: 3, Unsent: 4, Nacked: 5, Waiting: 6, Disconnected: 7}

func (o Outcome) settled() bool { return o != Waiting && o != Disconnected }

// ProxyOutcome is the outcome of one revision at one proxy.
type ProxyOutcome struct {
	SAN      string  `json:"san,omitempty"` // name in its certificate that the node id goes with
	Node     string  `json:"node"`
	Shared   bool    `json:"shared,omitempty"` // another connected proxy has the same node id
	Revision uint64  `json:"revision"`
	Outcome  Outcome `json:"outcome"`
	Text     string  `json:"text,omitempty"` // the proxy's words, or why nothing was sent
	// Fallback is the revision a proxy that refused this one gets instead: its
	// last good one, 0 if there is none.
	Fallback uint64 `json:"fallback,omitempty"`
}

func (v ProxyOutcome) id() store.Identity { return store.Identity{SAN: v.SAN, Node: v.Node} }

// Follow reports the outcome of every connected proxy on a revision as it
// comes, until all are in or ctx ends. It returns those still missing; a proxy
// that went away without an answer is one of them.
func (l *Ledger) Follow(ctx context.Context, number uint64, report func(ProxyOutcome)) []ProxyOutcome {
	expected := map[store.Identity]ProxyOutcome{} // not yet reported
	reported := map[store.Identity]bool{}
	for {
		changed := l.changes()
		current := l.outcomes(number)
		for id := range expected {
			if _, ok := current[id]; !ok {
				expected[id] = ProxyOutcome{SAN: id.SAN, Node: id.Node, Shared: expected[id].Shared, Revision: number, Outcome: Disconnected}
			}
		}
		for _, id := range slices.SortedFunc(maps.Keys(current), store.Identity.Compare) {
			switch v := current[id]; {
			case reported[id]:
			case v.Outcome.settled():
				report(v)
				reported[id] = true
				delete(expected, id)
			default:
				expected[id] = v
			}
		}
		if len(expected) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return slices.SortedFunc(maps.Values(expected), func(a, b ProxyOutcome) int { return a.id().Compare(b.id()) })
		case <-changed:
			pause(ctx)
		}
	}
}

// lookEvery is how often Follow looks at all proxies: a look for each answer of
// a fleet would be quadratic.
const lookEvery = 10 * time.Millisecond

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lookEvery):
	}
}

// outcomes returns the outcome at every proxy that is connected and asks for
// the policy.
func (l *Ledger) outcomes(number uint64) map[store.Identity]ProxyOutcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[store.Identity]ProxyOutcome{}
	of := map[string]int{} // connected proxies, by node id
	for id, p := range l.proxies {
		if len(p.sessions) > 0 {
			of[id.Node]++
		}
	}
	for id, p := range l.proxies {
		for _, s := range p.sessions {
			if !s.subscribed {
				continue
			}
			v := ProxyOutcome{SAN: id.SAN, Node: id.Node, Shared: of[id.Node] > 1, Revision: number, Outcome: l.outcome(s, number)}
			switch v.Outcome {
			case Nacked:
				v.Text = p.known.NackText
				if good := offer(l.revisions, s.stance); good < number {
					v.Fallback = good // else a newer revision is there by now
				}
			case Unsent:
				v.Text = s.problem
			default: // the outcome says it all
			}
			if severity[v.Outcome] > severity[all[id].Outcome] {
				all[id] = v
			}
		}
	}
	return all
}

func (l *Ledger) outcome(s *session, number uint64) Outcome {
	if accepted, ok := s.replies[number]; ok {
		if accepted {
			return Acked
		}
		return Nacked
	}
	if l.newest() < number || s.inFlight {
		return Waiting
	}
	want := offer(l.revisions, s.stance)
	switch {
	case want != 0 && want == s.unsendable:
		return Unsent
	case want != 0 && want != s.holds:
		return Waiting // about to be pushed
	case l.newest() > number:
		return Superseded
	default:
		return Withheld
	}
}

// ProxyStatus is one proxy in the ledger.
type ProxyStatus struct {
	store.Proxy
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"` // connected, or gone
	Streams   int       `json:"streams"`
	Processes []string  `json:"processes,omitempty"` // IP addresses, where several use the identity at once
	Envoy     string    `json:"envoy,omitempty"`     // its version
	Address   string    `json:"address,omitempty"`
	Runs      uint64    `json:"runs,omitempty"`    // what this process accepted last
	Pushed    uint64    `json:"pushed,omitempty"`  // the revision sent last
	Waiting   bool      `json:"waiting,omitempty"` // and not answered yet
	Problem   string    `json:"problem,omitempty"` // why it cannot be sent anything
	Offered   uint64    `json:"offered,omitempty"` // the revision it should hold
}

// Proxies returns every proxy that is connected or was within the last hour,
// by node id.
func (l *Ledger) Proxies() []ProxyStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]ProxyStatus, 0, len(l.proxies))
	for _, id := range slices.SortedFunc(maps.Keys(l.proxies), store.Identity.Compare) {
		list = append(list, l.status(l.proxies[id]))
	}
	return list
}

// Connected returns how many proxies have a stream.
func (l *Ledger) Connected() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range l.proxies {
		if len(p.sessions) > 0 {
			n++
		}
	}
	return n
}

func (l *Ledger) status(p *proxy) ProxyStatus {
	st := ProxyStatus{Proxy: p.known, Streams: len(p.sessions), Connected: len(p.sessions) > 0, Since: p.gone}
	shown := &p.last
	for i, id := range slices.Sorted(maps.Keys(p.sessions)) {
		s := p.sessions[id]
		if i == 0 {
			st.Since = s.connected
		}
		shown = s // the youngest
		st.Waiting = st.Waiting || s.inFlight
	}
	st.Envoy, st.Address = shown.node.version, shown.peer
	st.Pushed, st.Problem = shown.pushed, shown.problem
	st.Runs = p.known.Acked
	if st.Connected {
		st.Runs = shown.runs
		st.Offered = offer(l.revisions, shown.stance)
	}
	st.Since = st.Since.UTC()
	st.Processes = l.processes(p)
	return st
}

// overlap is how long a process and its successor may be connected at once, in a
// hot restart or while a machine takes over from another.
const overlap = time.Minute

// processes returns the addresses from which the identity has been connected at
// once for longer than one process would be, nil if that is so for one at most.
func (l *Ledger) processes(p *proxy) []string {
	var addresses []string
	for _, s := range p.sessions {
		host, _, err := net.SplitHostPort(s.peer)
		if err == nil && l.now().Sub(s.connected) >= overlap && !slices.Contains(addresses, host) {
			addresses = append(addresses, host)
		}
	}
	if len(addresses) < 2 {
		return nil
	}
	slices.Sort(addresses)
	return addresses
}

// Newest returns the number of the newest revision, 0 if there is none.
func (l *Ledger) Newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest()
}

// Behind returns how many connected proxies do not run the newest revision.
func (l *Ledger) Behind() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range l.proxies {
		for _, s := range p.sessions {
			if s.subscribed && s.runs != l.newest() {
				n++
				break
			}
		}
	}
	return n
}

// newest is Newest for callers that hold mu.
func (l *Ledger) newest() uint64 {
	if len(l.revisions) == 0 {
		return 0
	}
	return l.revisions[len(l.revisions)-1].number
}
