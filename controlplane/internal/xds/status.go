package xds

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// ProxyStatus is one proxy in the ledger.
type ProxyStatus struct {
	store.Proxy
	Policy    string    `json:"policy,omitempty"` // for it, "": none is, or none is known of a proxy that is gone
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"` // connected, or gone
	Streams   int       `json:"streams"`
	Processes []string  `json:"processes,omitempty"` // IP addresses, where several use the identity at once
	Elsewhere bool      `json:"elsewhere,omitempty"` // its stream is at another control plane on the store
	Envoy     string    `json:"envoy,omitempty"`     // its version
	Address   string    `json:"address,omitempty"`
	Runs      uint64    `json:"runs,omitempty"`    // what this process accepted last
	Pushed    uint64    `json:"pushed,omitempty"`  // the revision sent last
	Waiting   bool      `json:"waiting,omitempty"` // for the reply to it
	Problem   string    `json:"problem,omitempty"` // why it cannot be sent anything
	Offered   uint64    `json:"offered,omitempty"` // the revision it should hold

	// State says in words how it stands. Command line and console show it as it is.
	State    string   `json:"state"`
	Unserved []string `json:"unserved,omitempty"` // what it asks for that is not served
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

// Connected returns how many proxies have a stream, "" for all, else of those that a
// policy is for.
func (l *Ledger) Connected(policy string) int {
	return l.count(func(_ *proxy, s *session) bool { return policy == "" || s.track.name == policy })
}

// count returns how many proxies have such a session.
func (l *Ledger) count(is func(*proxy, *session) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.proxies {
		if p.has(func(s *session) bool { return is(p, s) }) {
			n++
		}
	}
	return n
}

// sorted are the proxy's sessions, the youngest last.
func (p *proxy) sorted() (list []*session) {
	for _, id := range slices.Sorted(maps.Keys(p.sessions)) {
		list = append(list, p.sessions[id])
	}
	return list
}

func (p *proxy) has(is func(*session) bool) bool {
	for _, s := range p.sessions {
		if is(s) {
			return true
		}
	}
	return false
}

func (l *Ledger) status(p *proxy) ProxyStatus {
	st := ProxyStatus{Proxy: p.known, Streams: len(p.sessions), Connected: len(p.sessions) > 0, Since: p.gone}
	shown, subscribed := &p.last, false
	for i, s := range p.sorted() {
		if i == 0 {
			st.Since = s.Connected
		}
		if s.Subscribed || !subscribed {
			shown, subscribed = s, s.Subscribed // the youngest that wants the policy, if any does
		}
		st.Waiting = st.Waiting || s.InFlight
	}
	st.Envoy, st.Address = shown.Version, shown.Peer
	st.Elsewhere = shown.elsewhere
	st.Pushed, st.Problem = shown.Pushed, shown.Problem
	st.Runs = p.known.Acked
	if st.Connected {
		st.Runs = shown.Runs
		if !shown.isAhead() {
			st.Offered = shown.offered()
		}
	}
	if t := shown.track; t.newest() > 0 {
		st.Policy = t.name
	} else if t := l.policies.trackOf(st.Runs); t != nil && !st.Connected {
		st.Policy = t.name
	}
	st.Since = st.Since.UTC()
	st.Processes = l.processes(p)
	st.Unserved = p.unserved()
	if !slices.Contains(st.Refused, st.Nacked) && st.Nacked <= st.Runs {
		// It has accepted a newer one, or this one, since.
		st.Nacked, st.NackedAt = 0, time.Time{}
		st.NackText = ""
	}
	st.State = l.state(&st, shown)
	return st
}

// noPolicy is the state of a proxy that has accepted nothing from here. What its own
// configuration has is not known here.
const noPolicy = "no policy from here: its bootstrap decides"

// state is ProxyStatus.State: the first that fits. What keeps a proxy from being served comes before what it
// was sent, that before what it runs, and a remark on a proxy that runs what it should is last.
func (l *Ledger) state(st *ProxyStatus, shown *session) string {
	switch {
	case !st.Connected:
		return "disconnected"
	case st.Problem != "":
		return "not served: " + st.Problem
	case len(st.Unserved) > 0:
		return asksFor(st.Unserved)
	case !shown.Subscribed:
		return "asks for no policy"
	case len(st.Processes) > 0:
		return fmt.Sprintf("%d processes: %s", len(st.Processes), strings.Join(st.Processes, ", "))
	case st.Waiting:
		return "waiting for its reply"
	case shown.isAhead():
		return shown.aheadState()
	case l.policies.isUntaken(shown):
		return untakenState(st.Runs)
	case st.Runs == 0 && shown.Stranger:
		return "runs a policy that is not served here"
	case st.Runs == 0 && st.Nacked > 0:
		return fmt.Sprintf("refused revision %d, %s", st.Nacked, noPolicy)
	case st.Runs == 0:
		return noPolicy
	case st.Nacked > st.Runs:
		return fmt.Sprintf("refused revision %d, runs %d", st.Nacked, st.Runs)
	case st.Unsettled:
		return fmt.Sprintf("refused revision %d, left alone until the next", st.Nacked)
	case st.Offered != 0 && st.Offered != st.Runs:
		return fmt.Sprintf("runs revision %d, gets %d", st.Runs, st.Offered)
	case shown.newest() > st.Runs:
		return fmt.Sprintf("runs revision %d, %d is withheld: others refused it", st.Runs, shown.newest())
	case st.Streams > 1:
		return fmt.Sprintf("connected, %d streams", st.Streams)
	}
	return "connected" + shown.canaryRemark()
}

func untakenState(runs uint64) string {
	if runs > 0 {
		return fmt.Sprintf("no policy is for it, runs revision %d", runs)
	}
	return "no policy is for it: its bootstrap decides"
}

// overlap is how long a process and its successor may be connected at once, in a
// hot restart or while a machine takes over from another.
const overlap = time.Minute

// processes returns the addresses from which the identity has been connected at
// once for longer than a process and its successor would be, nil unless there are
// several.
func (l *Ledger) processes(p *proxy) []string {
	var addresses []string
	for _, s := range p.sessions {
		host, _, err := net.SplitHostPort(s.Peer)
		if err == nil && l.now().Sub(s.Connected) >= overlap && !slices.Contains(addresses, host) {
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
func (l *Ledger) Newest() (newest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.policies.tracks {
		newest = max(newest, t.newest())
	}
	return newest
}

// Behind returns how many connected proxies do not run the newest revision, or not in
// each filter that asks for one.
func (l *Ledger) Behind() int {
	return l.count(func(p *proxy, s *session) bool {
		newest := s.newest()
		return s.Subscribed && s.Runs != newest && !s.isAhead() || newest > 0 && len(p.unserved()) > 0
	})
}

// unserved are the names that the proxy asks for and that are not served.
func (p *proxy) unserved() (names []string) {
	for _, s := range p.sessions {
		names = append(names, s.Unserved...)
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// strays reports whether the proxy asks for something, and not for the policy.
func (p *proxy) strays() bool {
	return len(p.unserved()) > 0 && !p.has(func(s *session) bool { return s.Subscribed })
}

func asksFor(unserved []string) string {
	return fmt.Sprintf("asks for what is not served (only %q is): %q", envoy.ResourceName, unserved[0])
}

// ForNewProxy returns the revision of a policy that a proxy gets which connects for the first
// time, 0 if there is none: the newest, unless it is withheld.
func (l *Ledger) ForNewProxy(policy string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policies.tracks[policy].forNewProxy()
}

// asks notes what the session wants, and no longer wants, that is not served.
func (l *Ledger) asks(s *session, wanted, dropped []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isDropped := func(name string) bool { return slices.Contains(dropped, name) }
	left := slices.DeleteFunc(slices.Clone(s.Unserved), isDropped)
	for _, name := range wanted {
		if len(left) < maxUnserved && !slices.Contains(left, name) {
			left = append(left, name)
		}
	}
	if !slices.Equal(left, s.Unserved) {
		s.Unserved = left
		l.broadcast()
	}
}

// isAhead says whether the proxy keeps a revision that is newer than all that it could
// get here.
func (s *session) isAhead() bool { return s.Ahead > s.track.newest() }

func (s *session) aheadState() string {
	return fmt.Sprintf("ahead: runs revision %d of this store, which this serve does not have", s.Ahead)
}

// Ahead returns how many connected proxies keep a revision that is newer than those here,
// and the highest such number, 0 for none.
func (l *Ledger) Ahead() (proxies int, highest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.proxies {
		found := uint64(0)
		for _, s := range p.sessions {
			if s.Subscribed && s.isAhead() {
				found = max(found, s.Ahead)
			}
		}
		if found > 0 {
			proxies, highest = proxies+1, max(highest, found)
		}
	}
	return proxies, highest
}

// Managed is a connected proxy and where it says that it answers management
// requests.
type Managed struct {
	SAN     string // name in its certificate, empty if serve requests none
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
				own = append(own, Managed{
					SAN: id.SAN, Node: id.Node, Policy: s.track.name,
					Address: s.Manage, Quota: s.Quota, Peer: s.Peer, Runs: s.Runs,
				})
			}
		}
		list = append(list, own...)
	}
	return list
}
