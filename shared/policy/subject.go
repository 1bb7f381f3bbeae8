package policy

import (
	"slices"
	"sort"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Subject is a rule as it holds for one key: a question to a Finder, and its answer.
type Subject struct {
	// What Find reads.
	Key       Key
	Requested []Requested // of each limit of the rule; empty if there is no request: the defaults hold

	// What Find writes.
	Override  int            // index of the override that holds for the key, -1 for none
	Windows   []limit.Window // with the limits that hold for the key, grids shifted by its jitter
	Shadow    bool           // denials are reported, not enforced
	Unlimited bool           // nothing is counted: the rule has no limits, or the key is unlimited
	TooLong   bool           // a value was too long for a regular expression

	unshifted  []limit.Window // Windows before the key's jitter has shifted them
	ownWindows bool           // Windows lie in the memory below, which the next Find overwrites

	// Memory, so that Find allocates nothing.
	hashed        []byte
	withRequested []limit.Window
	shifted       []limit.Window
}

// Requested is a limit as a request says it, within the bounds of its RequestedLimit.
type Requested struct {
	Limit uint32
	As    RequestedAs
}

// RequestedAs says how a request came by a limit.
type RequestedAs uint8

// How a request may come by a limit.
const (
	RequestedDefault RequestedAs = iota // the default holds: the request says no whole number, or there is none
	RequestedNumber                     // the number is the request's
	RequestedMax                        // max holds
)

// Finder finds what holds for the keys of one rule, in the same way for the filter, the quota
// service and operations on a key's counters.
type Finder struct {
	Rule    *Rule
	Windows []limit.Window // in the order of limit.Window.Compare, as records have them; see state.Overridden
	Order   []int          // Windows[Order[i]] is the policy's limit i
	OfAll   []limit.Window // Windows that are safe for every key: each Pays is the least that a key has

	domain    string
	prefix    []byte // precedes a key in its stable hash
	jitters   bool   // some window's grid is shifted by the key
	requested bool   // requests say the limit of some window
	overrides []overrideLimits
}

// overrideLimits are an override's windows in the order of Finder.Windows.
type overrideLimits struct {
	windows []limit.Window
	doubt   bool // the override holds if in doubt: it does not raise a limit
}

// Finder compiles a rule of the policy.
func (p *Policy) Finder(r *Rule) Finder {
	f := Finder{
		Rule: r, Windows: r.counted(r.Windows()), domain: p.Domain,
		prefix: state.AppendPart(state.AppendPart(nil, p.Domain), r.Counter),
	}
	own := make([]state.Override, len(r.Overrides))
	for i := range r.Overrides {
		o := &r.Overrides[i]
		limits := overrideLimits{r.counted(o.Windows()), !o.Raises(r)}
		f.overrides = append(f.overrides, limits)
		var keys []byte
		for _, p := range o.Key {
			keys = state.AppendPart(append(keys, byte(p.Kind)), p.Text)
		}
		own[i] = state.Override{Keys: string(keys), Windows: limits.windows}
	}
	f.Windows = state.Overridden(f.Windows, own)
	f.OfAll = f.ofAll()
	for _, l := range r.Limits {
		f.Order = append(f.Order, slices.IndexFunc(f.Windows, l.Same))
		f.jitters = f.jitters || l.Jitter > 0
		f.requested = f.requested || l.Requested != nil
	}
	return f
}

// ofAll are the rule's windows with the least Pays that a key may have.
func (f *Finder) ofAll() []limit.Window {
	if f.Rule.Settle == nil {
		return f.Windows
	}
	windows := slices.Clone(f.Windows)
	for i := range windows {
		w := &windows[i]
		for _, o := range f.overrides {
			if len(o.windows) > 0 && o.windows[i].Pays > 0 {
				w.Pays = min(w.Pays, o.windows[i].Pays)
			}
		}
	}
	for _, l := range f.Rule.Limits {
		if l.Requested != nil { // some request may say 1
			w := &windows[slices.IndexFunc(windows, l.Same)]
			w.Pays = min(w.Pays, 1)
		}
	}
	return windows
}

// Columns are the rule's windows as records have them.
func (r *Rule) Columns() []limit.Window { return r.counted(r.Windows()) }

// counted are windows of the rule as records have them. A rule with a block has one window more,
// which counts denials. A rule that settles charges the cost after the answer. So it has one window
// more, of units that are held until then, and each of its fixed windows pays back one limit a period
// of what was charged over its limit.
func (r *Rule) counted(windows []limit.Window) []limit.Window {
	if r.Block != nil && len(windows) > 0 {
		windows = append(windows, r.Block.window())
	}
	if r.Settle == nil || len(windows) == 0 {
		return sorted(windows)
	}
	for i := range windows {
		if w := &windows[i]; w.IsFixed() && !w.Unlimited {
			w.Pays = w.Limit
		}
	}
	return sorted(append(windows, limit.Window{Algorithm: limit.Concurrency, PeriodNs: r.HoldNs, Unlimited: true}))
}

// KeepWindows are Windows that stay as they are when Find is called again with the subject.
func (s *Subject) KeepWindows() []limit.Window {
	if s.ownWindows {
		return slices.Clone(s.Windows)
	}
	return s.Windows
}

// sorted sorts by sort.Slice: each type that slices.SortFunc sorts adds 20 kB to the
// filter.
func sorted(w []limit.Window) []limit.Window {
	sort.Slice(w, func(i, j int) bool { return w[i].Compare(w[j]) < 0 })
	return w
}

// Find works out what holds for the subject's key.
func (f *Finder) Find(to *Subject) {
	to.Override, to.TooLong = -1, false
	for i := range f.overrides {
		if f.holds(i, to) {
			to.Override = i
			break
		}
	}
	to.ownWindows = f.IsRequested(to)
	if to.ownWindows {
		to.unshifted = f.requestedWindows(to)
	} else {
		to.unshifted = f.limits(to.Override)
	}
	to.Windows = to.unshifted
	to.Unlimited = len(to.Windows) == 0
	to.Shadow = f.Rule.Mode == ModeShadow
	if !f.jitters && f.Rule.EnforcePercent >= 100 {
		return
	}
	jitter, percent := f.Hash(to)
	to.Shadow = to.Shadow || percent%100 >= uint64(f.Rule.EnforcePercent)
	if f.jitters && !to.Unlimited {
		to.shifted = to.shifted[:0]
		for i := range to.Windows {
			w := &to.Windows[i]
			to.shifted = append(to.shifted, w.Shifted(w.KeyShift(jitter)))
		}
		to.Windows = to.shifted
		to.ownWindows = true
	}
}

// IsRequested reports whether the request says the limit of some window of the subject's key.
func (f *Finder) IsRequested(of *Subject) bool { return f.requested && of.Override < 0 }

// requestedWindows are the rule's windows with the limits that the request says.
func (f *Finder) requestedWindows(to *Subject) []limit.Window {
	to.withRequested = append(to.withRequested[:0], f.Windows...)
	for i := range to.Requested {
		if f.Rule.Limits[i].Requested != nil {
			w := &to.withRequested[f.Order[i]]
			w.Limit, w.Pays = to.Requested[i].Limit, min(w.Pays, 1)*to.Requested[i].Limit
		}
	}
	return to.withRequested
}

// holds reports whether every pattern of an override holds for its part of the key.
func (f *Finder) holds(override int, to *Subject) bool {
	k, doubt := &to.Key, f.overrides[override].doubt
	for i := range f.Rule.Overrides[override].Key {
		p, v := &f.Rule.Overrides[override].Key[i], &k.Parts[i]
		held, tooLong := p.Holds(v.Whole(), v.Present, doubt)
		to.TooLong = to.TooLong || tooLong
		for _, other := range k.readings {
			if other.part == i && held != doubt {
				held, tooLong = p.Holds(other.text, true, doubt)
				to.TooLong = to.TooLong || tooLong
			}
		}
		if !held {
			return false
		}
	}
	return true
}

// limits are the windows with the limits that an override gives its keys; -1 stands for the
// rule's own. There are none if nothing is counted.
func (f *Finder) limits(override int) []limit.Window {
	if override < 0 {
		return f.Windows
	}
	return f.overrides[override].windows
}

// Hash is the stable hash of the rule's counter and the subject's key.
func (f *Finder) Hash(of *Subject) (lo, hi uint64) {
	of.hashed = append(append(of.hashed[:0], f.prefix...), of.Key.Bytes...)
	return state.StableHash(of.hashed)
}

// QuotaKey is how the quota service knows the subject's key.
func (f *Finder) QuotaKey(of *Subject) [16]byte { return quota.KeyOf(f.Hash(of)) }

// Counter identifies a table of the rule's counter. suffix tells apart tables of one
// counter.
func (f *Finder) Counter(suffix string, capacity uint32) state.CounterID {
	return state.NewCounterID(f.domain, f.Rule.Counter, f.Rule.KeyDefinition()+suffix, capacity)
}

// Definition is what the quota service is told of the subject's limits, after Find. It has no
// number yet.
func (f *Finder) Definition(of *Subject) quota.Definition { return f.definition(of.unshifted) }

// DefinitionOf is the Definition of an override's keys; of -1, of the rule's own limits.
func (f *Finder) DefinitionOf(override int) quota.Definition {
	return f.definition(f.limits(override))
}

func (f *Finder) definition(of []limit.Window) quota.Definition {
	windows := slices.Clone(of)
	for i := range windows {
		windows[i].Stamp, windows[i].FillNs = 0, 0
	}
	return quota.Definition{
		Counter: f.Counter("", 0), Windows: windows, Lease: f.Rule.Lease, CountDenied: f.Rule.CountDenied,
	}
}
