package state

import (
	"slices"
	"unsafe"

	"github.com/dchest/siphash"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/directory"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

// CounterID identifies a counter: an unkeyed hash that is the same everywhere.
type CounterID = directory.CounterID

// NewCounterID returns the id of a counter. keyParts is the canonical text of its
// key parts' definitions.
func NewCounterID(domain, counter, keyParts string, capacity uint32) CounterID {
	b := AppendPart(nil, domain)
	b = AppendPart(b, counter)
	b = AppendPart(b, keyParts)
	b = le.AppendUint32(b, capacity)
	lo, hi := siphash.Hash128(0, 0, b)
	var id CounterID
	le.PutUint64(id[:], lo)
	le.PutUint64(id[8:], hi)
	return id
}

// StableHash returns the two halves of a hash that is the same in every process.
// Use it for what must not change when Envoy restarts, never to place a record.
func StableHash(key []byte) (lo, hi uint64) { return siphash.Hash128(0, 0, key) }

// OwnerID identifies an owner of tables: a configuration, by its name, which may be in
// parts.
func OwnerID(name ...string) uint64 {
	key := [16]byte{8: 1}
	h := siphash.New(key[:])
	for _, part := range name {
		// Write only reads, and a copy would be as large as a policy.
		_, _ = h.Write(unsafe.Slice(unsafe.StringData(part), len(part))) //nolint:gosec // see above
	}
	return h.Sum64()
}

// AppendPart appends the value of a key part, preceded by its length, so that the
// keys ("ab", "c") and ("a", "bc") differ.
func AppendPart(b []byte, part string) []byte {
	b = le.AppendUint32(b, uint32(len(part))+1)
	return append(b, part...)
}

// AppendMissing appends a key part that the request does not have. It differs from
// an empty one.
func AppendMissing(b []byte) []byte { return le.AppendUint32(b, 0) }

// Key is a key of a counter with the limits that hold for it.
type Key struct {
	Bytes []byte
	Limits
}

// Limits are the limits that hold for a key. Both lists have the windows of the table's definition, in its order. An
// Entry keeps them until a call loads its page anew and gives it Limits again: the caller must not change the lists
// before that.
type Limits struct {
	Windows []limit.Window // with the key's own limits, grids shifted by its jitter
	OfRule  []limit.Window // with the rule's own limits, which eviction compares by; see Overridden
}

// setLimits sets e.windows and e.rule: for each column of the layout the window with the key's limits, and with the
// rule's. A column that this configuration does not have gets no limits. If it is jittered, the key's grid is not
// known, so each hit counts in it for a whole period.
//
//	list             in the order of   with the limits of                            lasts as long as
//	def.Windows      the definition    the rule                                      the Table
//	layout.Windows   columns           nobody, or the rule; no one goes by them      the placement
//	Limits.Windows   the definition    the key                                       see Limits
//	Limits.OfRule    the definition    the rule                                      see Limits
//	e.windows        columns           the key                                       the loaded page
//	e.rule           columns           the rule                                      the loaded page
func (e *Entry) setLimits(limits *Limits) {
	e.rule.set(e.placement, limits.OfRule)
	e.windows.set(e.placement, limits.Windows)
	if e.placement.columnsAreWindows {
		return
	}
	for column := range page.Column(len(e.windows.list)) {
		w := e.windows.at(column)
		w.Stamp = e.rule.at(column).Stamp // only the rule has one: see Overridden
		if w.Jitter > 0 && !slices.Contains(e.placement.columnOf, column) {
			w.Algorithm = limit.FixedWindowPerKey
			w.Elastic = true
		}
	}
}

// columnWindows is a list of windows by column. A []limit.Window is in the definition's order, or a layout's.
type columnWindows struct {
	list   []limit.Window
	memory []limit.Window // of a list that lies in none of the caller's
}

func (ws *columnWindows) at(column page.Column) *limit.Window { return &ws.list[column] }

// lacksOfColumn reports whether a window lacks something that its column has. If one does, columnWindows cannot take
// a list of the definition's order as it is, though the columns have the same order:
//
//	a log's Units     the layout's: the log may have been longer once (set)
//	a bucket's Stamp  the rule's: a key's own windows have none (setLimits)
func lacksOfColumn(w *limit.Window) bool {
	return w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.TokenBucket
}

// set puts windows, which are in the definition's order, into that of the columns. A column that the definition lacks
// has the layout's window, without limits. The list is windows itself if the order is the same.
func (ws *columnWindows) set(by *placement, windows []limit.Window) {
	if by.columnsAreWindows {
		ws.list = windows
		return
	}
	ws.memory = append(ws.memory[:0], by.layout.Windows...)
	ws.list = ws.memory
	for window, column := range by.columnOf {
		if column == page.NoColumn {
			continue
		}
		units := ws.list[column].Units // a log may be longer than this limit: see longestLogs of package directory
		ws.list[column] = windows[window]
		ws.list[column].Units = units
	}
}

// Override is the limits that some keys have instead of their rule's.
type Override struct {
	Keys    string         // identifies the keys, in any form
	Windows []limit.Window // in the order of the rule's; none: these keys have no limits
}

// Overridden returns a rule's windows for Key.OfRule: token buckets get the stamp of
// the overrides and the fill time of the slowest bucket. The order of overrides
// matters, because the first that matches a key holds.
//
// A page's floor has of a token bucket when it is full. How many tokens it lacks follows from that by the limits
// with which it was counted, and overrides give some keys other limits. So a stamp of all overrides is written with the
// instant: by it a floor is known that was counted with other overrides. See Stamps in package limit.
func Overridden(rule []limit.Window, overrides []Override) []limit.Window {
	rule = slices.Clone(rule)
	for window := range rule {
		if w := &rule[window]; w.Algorithm == limit.TokenBucket {
			w.Stamp, w.FillNs = stampFor(w, window, overrides)
		}
	}
	return rule
}

// stampFor returns the stamp and the longest fill time of a window's overrides;
// both are 0 if no override changes the window's limits.
func stampFor(w *limit.Window, window int, overrides []Override) (stamp uint16, fillNs int64) {
	var text []byte
	differs := false
	for _, o := range overrides {
		text = AppendPart(text, o.Keys)
		if len(o.Windows) == 0 {
			text = append(text, 0)
			continue
		}
		own := o.Windows[window]
		kind := byte(1)
		if own.Unlimited {
			kind = 2
		}
		text = le.AppendUint32(le.AppendUint32(append(text, kind), own.Limit), own.Burst)
		differs = differs || own.Limit != w.Limit || own.Burst != w.Burst || own.Unlimited != w.Unlimited
		fillNs = max(fillNs, own.Fill())
	}
	if !differs {
		return 0, 0
	}
	return limit.NewStamp(siphash.Hash(0, 3, text)), fillNs
}
