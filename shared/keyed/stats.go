package keyed

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Stats is what a limiter holds, and what it has decided since it was built.
type Stats struct {
	Keys     uint64 // that have counted something in a window that is not over
	Capacity uint64 // live keys at which fewer than 2 in 100 new ones meet a full bucket
	Slots    uint64 // the most keys that fit
	Bytes    uint64 // that the counters take now; see MaxBytes for the most

	Allowed     uint64 // hits
	Denied      uint64 // hits
	FloorDenied uint64 // of these, hits of new keys that started from what evicted keys had used
	Evicted     uint64 // live keys that made room for new ones
	Full        uint64 // hits and operations that found no room where OnFull is not Inherit
	Rebased     uint64 // keys found far in the future, after the clock was set back, and moved to the present
}

// Stats counts the live keys. It looks at every key, one shard after the other.
func (l *Limiter) Stats() Stats {
	now := l.now()
	sum := Stats{Capacity: l.capacity, Slots: l.slots}
	for i := range l.shards {
		l.shards[i].addStats(&sum, l.windows, now)
	}
	return sum
}

func (s *shard) addStats(sum *Stats, windows []limit.Window, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.walking = true
	table, status := s.table.Stats(&s.entry, windows, now)
	s.store.walking = false
	must("count keys", status)
	sum.Keys += table.Keys
	sum.Bytes += s.store.bytes()
	sum.Allowed += s.counts.allowed
	sum.Denied += s.counts.denied
	sum.FloorDenied += s.counts.floorDenied
	sum.Evicted += s.counts.evicted
	sum.Full += s.counts.full
	sum.Rebased += s.counts.rebased
}
