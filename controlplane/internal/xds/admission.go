package xds

import "fmt"

// maxProxies bounds the streams, and the proxies that are remembered here and
// in the store.
const maxProxies = 10_000

// share of all streams is what one address may have, and one proxy: a fifth.
const share = 5

// admit counts a stream that was opened, or refuses it because there are too many.
// The caller calls leave for each one that is let in.
func (l *Ledger) admit(origin string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.streams >= l.maxStreams:
		return fmt.Errorf("%d streams are open, no more are served", l.streams)
	case l.streamsOf[origin] >= l.maxStreamsOf:
		return fmt.Errorf("%d streams are open from %s, no more are served from one address",
			l.streamsOf[origin], origin)
	}
	l.streams++
	l.streamsOf[origin]++
	return nil
}

func (l *Ledger) leave(origin string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams--
	if l.streamsOf[origin]--; l.streamsOf[origin] == 0 {
		delete(l.streamsOf, origin)
	}
}
