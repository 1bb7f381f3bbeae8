package action

import (
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Terms are what an Action is decided by: what a quota.Definition says, taken apart.
type Terms struct {
	Windows     []limit.Window // without the limit.Concurrency
	HoldLimit   *limit.Window  // the limit.Concurrency; nil = no units are held
	HasBlock    bool           // the last of the Windows is a limit.Block
	Lease       uint32         // as quota.Definition has it
	CountDenied bool           // as quota.Definition has it
}

// NewTerms returns the terms of a definition, or says what is wrong with it.
func NewTerms(d *quota.Definition) (*Terms, error) {
	if err := check(d); err != nil {
		return nil, err
	}
	terms := &Terms{Lease: d.Lease, CountDenied: d.CountDenied}
	terms.Windows, terms.HoldLimit = split(d.Windows)
	last := len(terms.Windows) - 1
	terms.HasBlock = last >= 0 && terms.Windows[last].Algorithm == limit.Block
	return terms, nil
}

// WindowsFor returns the windows as they hold for the key.
func (terms *Terms) WindowsFor(partKey [16]byte) balance.KeyWindows {
	windows := balance.KeyWindows{Defined: terms.Windows, Shifted: terms.Windows}
	if slices.ContainsFunc(terms.Windows, func(w limit.Window) bool { return w.Jitter > 0 }) {
		windows.Shifted = make([]limit.Window, len(terms.Windows))
		for i, w := range terms.Windows {
			windows.Shifted[i] = quota.Shifted(w, partKey)
		}
	}
	return windows
}

// split copies windows, and parts those that count from the limit.Concurrency; nil = there is
// none. With one, a fixed window pays what is charged over its limit.
func split(all []limit.Window) (windows []limit.Window, hold *limit.Window) {
	windows = slices.Clone(all)
	last := len(windows) - 1
	if last < 0 || windows[last].Algorithm != limit.Concurrency {
		return windows, nil
	}
	windows, hold = windows[:last], &windows[last]
	for i := range windows {
		if w := &windows[i]; w.IsFixed() && !w.Unlimited {
			w.Pays = w.Limit
		}
	}
	return windows, hold
}

// check refuses a definition that cannot be decided by.
func check(d *quota.Definition) error {
	for i := range d.Windows {
		var err error
		switch d.Windows[i].Algorithm {
		case limit.Concurrency:
			err = checkHold(d, i)
		case limit.Block:
			err = checkBlock(d, i)
		default:
			err = checkWindow(d, i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkBlock refuses a limit.Block, or what the definition says beside it.
func checkBlock(d *quota.Definition, i int) error {
	w, last := &d.Windows[i], len(d.Windows)-1
	if d.Windows[last].Algorithm == limit.Concurrency {
		last--
	}
	switch {
	case w.PeriodNs < limit.MinBlockNs || w.PeriodNs > limit.MaxBlockNs || *w != limit.NewBlock(w.PeriodNs, w.Elastic):
		return errors.New("a block is not 1 second to 30 days long, or has more than a limit of 1")
	case i == 0 || i != last:
		return errors.New("a block does not come after all windows that count")
	case d.Lease != quota.LeaseOff:
		return errors.New("a block takes no lease")
	}
	return nil
}

// checkHold refuses a limit.Concurrency, or what the definition says beside it.
func checkHold(d *quota.Definition, i int) error {
	w := &d.Windows[i]
	switch {
	case i != len(d.Windows)-1:
		return errors.New("a hold does not come after all other windows")
	case w.PeriodNs < limit.MinHoldNs || w.PeriodNs > limit.MaxHoldNs:
		return errors.New("a hold is not 10 seconds to 1 day long")
	case d.CountDenied || d.Lease != quota.LeaseOff:
		return errors.New("what holds units until their answers takes no count_denied and no lease")
	}
	return nil
}

// checkWindow refuses a window that counts by no known algorithm, or stands in the wrong place.
func checkWindow(d *quota.Definition, i int) error {
	w := &d.Windows[i]
	isBucket := w.Algorithm == limit.TokenBucket
	switch {
	case !slices.Contains(limit.Counting[:], w.Algorithm):
		return errors.New("the algorithm of a window is not known: the proxy runs a newer release")
	case !w.InRange():
		return errors.New("a window is not 1 ms to 366 days or 1, 2, 3, 4, 6 or 12 months long, or its offset is not less")
	case isBucket && w.Unlimited && (w.Limit > 0 || w.Burst > 0):
		return errors.New("an unlimited bucket has no limit and no burst")
	case w.Units > limit.MaxLog:
		return errors.New("a log remembers at most 512 units")
	case i > 0 && d.Windows[i-1].Compare(*w) >= 0:
		return errors.New("windows are not in order of their period, algorithm, offset, jitter and elastic, " +
			"or one is there twice")
	case d.CountDenied && (isBucket || d.Lease != quota.LeaseOff):
		return errors.New("count_denied takes no token bucket and no lease")
	}
	return nil
}
