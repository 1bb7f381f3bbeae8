package xds

import "fmt"

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
