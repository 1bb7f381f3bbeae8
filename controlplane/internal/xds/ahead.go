package xds

import "fmt"

// isBeyond says whether the store has never given so high a number.
func (l *Ledger) isBeyond(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return number > l.last
}

// isAhead says whether the proxy keeps a revision that is newer than all that it could
// get here.
func (s *session) isAhead() bool { return s.ahead > s.track.newest() }

func (s *session) aheadState() string {
	return fmt.Sprintf("ahead: runs revision %d of this store, which this serve does not have", s.ahead)
}

// Ahead returns how many connected proxies keep a revision that is newer than those here,
// and the highest such number, 0 for none.
func (l *Ledger) Ahead() (proxies int, highest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.proxies {
		found := uint64(0)
		for _, s := range p.sessions {
			if s.subscribed && s.isAhead() {
				found = max(found, s.ahead)
			}
		}
		if found > 0 {
			proxies, highest = proxies+1, max(highest, found)
		}
	}
	return proxies, highest
}
