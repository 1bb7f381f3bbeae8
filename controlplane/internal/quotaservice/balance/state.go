package balance

import "github.com/sluice-ratelimit/sluice/shared/limit"

// State is what one key has counted at NowNs: the quota service's store keeps it. It has the windows of all
// definitions that have asked for the key. It can be rolled, but only a View is asked, because windows have two forms:
//
//	a window                     has its Limit, Burst and Units
//	of a definition that asks    yes
//	read from the store's bytes  no, but a bucket has Limit and Burst, and all have Pays: rolling needs no more
//
// record.ArrangeFor puts a definition's own windows first before it makes a View.
type State struct {
	NowNs   int64
	Windows []limit.Window // as the policy has them, so not shifted for the key
	Usages  []limit.Usage  // by window
	Holders Holders

	bucketSpendBy []int64 // by window, of the buckets; nil = no window is a bucket
}

// NewState returns a key that has counted nothing.
func NewState(now int64, windows []limit.Window) State {
	s := State{NowNs: now, Windows: windows, Usages: make([]limit.Usage, len(windows))}
	for i := range windows {
		if windows[i].Algorithm == limit.TokenBucket {
			s.SetBucketSpendBy(i, now)
		}
	}
	return s
}

// SetBucketSpendBy sets the instant until which the units that a bucket has counted may be spent.
func (s *State) SetBucketSpendBy(i int, spendBy int64) {
	if s.bucketSpendBy == nil {
		s.bucketSpendBy = make([]int64, len(s.Windows))
	}
	s.bucketSpendBy[i] = spendBy
}

// SpendBy is the instant until which the units that a window has counted may be spent.
func (s *State) SpendBy(i int) int64 { return s.window(i).spendBy() }

func (s *State) window(i int) window { return s.windowWith(&s.Windows[i], i) }

// windowWith returns window i as a definition has it.
func (s *State) windowWith(def *limit.Window, i int) window {
	w := window{def: def, usage: &s.Usages[i], nowNs: s.NowNs}
	if def.Algorithm == limit.TokenBucket {
		w.bucketSpendBy = &s.bucketSpendBy[i]
	}
	return w
}

// Roll brings s to now, or leaves it as it is if it is later already. A worker that has been silent for too long
// is charged what it held, at the instant when its hold ended.
func (s *State) Roll(now int64) {
	for {
		silent, ok := s.Holders.dropSilent(now)
		if !ok {
			break
		}
		s.rollWindows(silent.endNs())
		if silent.Held == 0 {
			continue
		}
		for i := range s.Windows {
			s.window(i).chargeSilent(silent.Held)
		}
	}
	s.rollWindows(now)
}

func (s *State) rollWindows(now int64) {
	now = max(now, s.NowNs)
	for i := range s.Windows {
		s.window(i).roll(now)
	}
	s.NowNs = now
}

// SetBack moves s back to now, because the clock was set back.
func (s *State) SetBack(now int64) {
	for i := range s.Windows {
		s.Windows[i].SetBack(&s.Usages[i], s.NowNs, now)
	}
	for i := range s.bucketSpendBy {
		s.bucketSpendBy[i] += now - s.NowNs
	}
	for i := range s.Holders {
		s.Holders[i].NotedNs += now - s.NowNs
	}
	s.NowNs = now
}

// ExpiryNs returns an instant from which s counts nothing: the first one, or a later one if something is held.
func (s *State) ExpiryNs() int64 {
	held := s.Holders.Held()
	heldEnd := max(s.NowNs, s.Holders.endNs())
	expiry := heldEnd
	for i := range s.Windows {
		w := s.window(i)
		end := w.expiryNs()
		if held > 0 { // it is charged when its hold ends, beside what counts then
			end = max(end, heldEnd) + w.chargedNs(held)
		}
		expiry = max(expiry, end)
	}
	return expiry
}
