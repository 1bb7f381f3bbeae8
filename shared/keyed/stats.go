package keyed

import "github.com/sluice-ratelimit/sluice/shared/limit"

// Stats is a limiter's size, and what it has decided since it was built.
type Stats struct {
	Keys     uint64 // live keys: they have counted something in a window that is not over
	Capacity uint64 // live keys at which fewer than 2 in 100 new keys find no room
	Slots    uint64 // how many keys fit at most
	Bytes    uint64 // memory of the counters now; see MaxBytes for the bound

	Allowed     uint64 // allowed hits
	Denied      uint64 // denied hits
	FloorDenied uint64 // denied hits of new keys that started with the usage of evicted keys
	Evicted     uint64 // live keys that made room for new ones
	Full        uint64 // hits and operations that found no room, if OnFull is not Inherit
	Rebased     uint64 // keys moved to the present: the clock was set back since their last hit
}

// Stats counts the live keys and adds up what the limiter has decided. It reads
// every key, one shard after the other.
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
