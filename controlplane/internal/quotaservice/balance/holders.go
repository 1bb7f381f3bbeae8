package balance

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// MaxHolders is how many workers may hold units of one key.
	MaxHolders = 256
	// emptyNs is how long a holder of nothing is remembered at most, so that no late report counts twice.
	emptyNs = 60 * second
)

var (
	// ErrHolders says that one worker more would hold units of the key than may.
	ErrHolders = errors.New("256 workers hold units of this key: another one may once one of them holds none")
	// ErrStale says that a report is no newer than the last one noted.
	ErrStale = errors.New("a newer report of the worker is noted already")
)

// Holder is what the store keeps of a worker's last report of a key. quota.Sums is the worker's side, and draws
// both.
type Holder struct {
	Worker  uint64
	Since   uint64
	Number  uint64
	Charged uint64
	Held    uint32 // with what the report was granted
	NotedNs int64  // when the report was noted
	HoldNs  int64  // for how long a silent worker holds its units
}

// endNs is when the holder goes: what it holds is charged then.
func (h *Holder) endNs() int64 {
	if h.Held == 0 {
		return h.NotedNs + min(h.HoldNs, emptyNs)
	}
	return h.NotedNs + h.HoldNs
}

// Holders are the workers that hold units of a key.
type Holders []Holder

// Held is how many units are held.
func (hs Holders) Held() (units uint32) {
	for i := range hs {
		units = limit.AddSaturating(units, hs[i].Held)
	}
	return units
}

// endNs is when the last holder goes, 0 if there is none.
func (hs Holders) endNs() (end int64) {
	for i := range hs {
		end = max(end, hs[i].endNs())
	}
	return end
}

func (hs Holders) find(worker uint64) *Holder {
	for i := range hs {
		if hs[i].Worker == worker {
			return &hs[i]
		}
	}
	return nil
}

// findOrAdd returns the worker's holder, a new one if it has none.
func (hs *Holders) findOrAdd(worker uint64) (*Holder, error) {
	if h := hs.find(worker); h != nil {
		return h, nil
	}
	if len(*hs) >= MaxHolders && !hs.dropEmpty() {
		return nil, ErrHolders
	}
	*hs = append(*hs, Holder{Worker: worker})
	return &(*hs)[len(*hs)-1], nil
}

// dropEmpty drops the oldest holder of nothing, and reports whether there was one.
func (hs *Holders) dropEmpty() bool {
	oldest := -1
	for i := range *hs {
		h := &(*hs)[i]
		if h.Held == 0 && (oldest < 0 || h.NotedNs < (*hs)[oldest].NotedNs) {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	*hs = slices.Delete(*hs, oldest, oldest+1)
	return true
}

// dropSilent drops the holders that have ended by now, and returns them in the order in which they end.
func (hs *Holders) dropSilent(now int64) (silent []Holder) {
	for _, h := range *hs {
		if h.endNs() <= now {
			silent = append(silent, h)
		}
	}
	if len(silent) == 0 {
		return nil
	}
	*hs = slices.DeleteFunc(*hs, func(h Holder) bool { return h.endNs() <= now })
	slices.SortStableFunc(silent, func(a, b Holder) int { return cmp.Compare(a.endNs(), b.endNs()) })
	return silent
}

// Undo takes back units that a report was granted, and reports whether it did. It does nothing if the worker has
// reported anew since: that report says what the worker holds.
func (hs Holders) Undo(granted *quota.Report, units uint32) bool {
	h := hs.find(granted.Worker)
	if h == nil || h.Number != granted.Number {
		return false
	}
	h.Held -= min(units, h.Held)
	return true
}
