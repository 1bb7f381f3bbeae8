// Package quota is how a proxy leases units of a limit that holds over all
// proxies: the messages between the filter and the quota service, their bytes on
// the wire, and the arithmetic of leases that both sides use.
//
// Its invariant: units are deducted from the shared counter before a proxy may
// spend them, so nothing that gets lost, repeated or delayed on the way admits
// more than the limit. docs/quota.proto describes the same messages for others;
// a test holds both equal.
//
// It must build for wasm: no reflection, no fmt, nothing that does I/O.
//
// To read it, begin with example_test.go, which plays a lease and a hold. Then:
//
//	file        what                                             filter  service
//	quota.go    the messages: Asks with their parts and reports,    x       x
//	            Results with their grants
//	codec.go    the messages' bytes, append beside decode           x       x
//	lease.go    the times of a lease                                x       x
//	decide.go   what is left of a State, what a part is granted             x
//	            of that, how the key stands
//	account.go  what a worker holds of a key; draws its reports     x
//	state.go    State, how a key stands: its windows, what they             x
//	            have counted
//	hold.go     what all workers hold of a key: Holders, Note               x
//	debt.go     what counts whatever is left                                x
//
// Of the tests, these guard:
//
//	codec_test.go  codec.go: golden bytes, and what is refused
//	lease_test.go  lease.go, decide.go, state.go: examples of times, grants, waits and standings
//	hold_test.go   hold.go, account.go, debt.go, by a model: no more runs than may, each answer is charged once
//	proto_test.go  quota.go: docs/quota.proto has the same messages
//
// A new field of a message is first in docs/quota.proto, then in its struct, its append, its decode and the golden
// bytes of codec_test.go, which have each field. TestAsPublished fails until all agree.
package quota

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// The gRPC method of the service.
const (
	Service = "sluice.quota.v1.Quota"
	Method  = "Lease"
)

// The bounds of a stream. The service ends a stream that exceeds one.
const (
	MaxMessageBytes = 64 << 10
	MaxDefinitions  = 1024 // of a stream; one more takes the place of the least recently used
	MaxGroup        = 16   // parts of an ask
	MaxWindows      = 16   // of a definition
	MaxDomainBytes  = 128
	MaxReturnable   = 4096 // newest grants of a stream that units can be returned to
)

// Asks is a message from a worker to the service.
type Asks struct {
	// Domain and Process are in a stream's first message only. Process identifies
	// the proxy's process: all its workers send the same number.
	Domain  string
	Process uint64

	Definitions []Definition // before the first ask that names them
	Asks        []Ask
	Returns     []Return
}

// KeyOf returns the key for the two halves of its stable hash. The low half also
// says how the key's jitter shifts windows: see Shifted.
func KeyOf(lo, hi uint64) (key [16]byte) {
	binary.LittleEndian.PutUint64(key[:8], lo)
	binary.LittleEndian.PutUint64(key[8:], hi)
	return key
}

// Shifted returns a window of a rule as it holds for the key.
func Shifted(w limit.Window, key [16]byte) limit.Window {
	return w.Shifted(w.KeyShift(binary.LittleEndian.Uint64(key[:8])))
}

// Definition is the windows of a counter with the limits that hold for some of
// its keys. A stream numbers its definitions itself; sending a number again
// replaces its definition.
type Definition struct {
	ID      uint32
	Counter [16]byte // the counter's stable identity
	// Windows are in the order of limit.Window.Compare; Stamp, FillNs and Pays do not travel.
	// With a limit.Concurrency, the last window, units are held until their answers are known:
	// parts report what is held, and nothing is leased. With a limit.Block nothing is leased either.
	Windows []limit.Window
	// Lease is the most units that may be granted ahead of need to one proxy:
	// LeaseOff, LeaseAuto or a number.
	Lease uint32
	// CountDenied makes what waits for an ask that is denied count all the same, at most
	// a window's limit.
	CountDenied bool
}

// CountsDenials reports whether each denied ask changes what the key has counted: also one of a
// key that is known to be denied must be sent.
func (d *Definition) CountsDenials() bool {
	block := d.Block()
	return d.CountDenied || block >= 0 && d.Windows[block].Elastic
}

// Block is the index of the limit.Block in Windows, -1 if there is none.
func (d *Definition) Block() int { return blockOf(d.Windows) }

// blockOf returns the index of the limit.Block, which is near the end, or -1.
func blockOf(windows []limit.Window) int {
	for i := len(windows) - 1; i >= 0; i-- {
		if windows[i].Algorithm == limit.Block {
			return i
		}
	}
	return -1
}

// Values of Definition.Lease beside a number of units.
const (
	LeaseOff  = 0
	LeaseAuto = 1<<32 - 1
)

// Ask asks for units of all its parts: all are granted or none, but for the parts in shadow.
type Ask struct {
	ID    uint32 // the worker's own number, in the answer again
	Parts []Part
}

// Part asks for units of one key, or reports what is held of it, or both.
type Part struct {
	Definition uint32
	Key        [16]byte // see KeyOf
	Cost       uint32   // of the request that has waited longest: a grant has at least that
	Waiting    uint32   // units that all waiting requests of the worker need, at least Cost
	Ahead      uint32   // units that the proxy expects to need while a lease lasts
	// Spent are units that the proxy has admitted by itself while it could not ask.
	// They are counted whatever is left, at most a window's limit.
	Spent   uint32
	Inspect bool // grant nothing, only say how the key stands
	Shadow  bool // whether this part is denied does not matter to the other parts
	NoBlock bool // a denial begins no block and prolongs none
	Report       // of a definition that holds: what the worker holds and has charged
}

// Report is what one worker of a proxy holds of a key, and what it has charged in all. It says
// how things stand, not what changed: a report that is lost, late or repeated harms nothing,
// and any stream may carry it.
type Report struct {
	Worker  uint64 // whose report it is: another number for each worker and configuration
	Held    uint32 // units that it holds, without what the part asks for
	Charged uint64 // sum of the costs of settled holds, from report number Since on
	Known   uint64 // the part of Charged that the worker knows to be counted
	Since   uint64 // number of the report from which Charged is summed; Number if no earlier one may be under way
	Number  uint64 // of the report: each report of the worker has a larger one; 0 = no report
}

// Return gives back units of a grant. It is sent once, on the stream that got
// the grant, after that stream's first answer.
type Return struct {
	Grant uint32 // number of the grant on this stream
	Units uint32 // that were not spent
}

// Results is a message from the service to a worker.
type Results struct {
	Results []AskResult
	Proxies uint32 // live proxies of the domain, 0 = not known
}

// Outcome is what became of an ask.
type Outcome uint8

// The outcomes.
const (
	Granted     Outcome = 1 + iota
	Denied              // some part has too few units left
	Unavailable         // one of the keys could not be decided: its part has Failed
	Unknown             // a definition that the stream has not sent or the service has dropped
	// Busy: the service takes no more asks of this stream now, or a key has no room for another worker's report.
	Busy
)

// AskResult is the answer to an ask.
type AskResult struct {
	ID      uint32
	Outcome Outcome
	Grants  []Grant // one for each part, if Outcome is Granted, Denied or Unavailable
}

// Grant is what one part got, and how its key stands. In an answer that denies,
// Units is 0, and Denied says which parts had too few.
type Grant struct {
	Number   uint32 // for Return; counts the stream's grants from 1, 0 if nothing was granted
	Units    uint32
	Leased   bool  // units may be kept for later requests; otherwise the rest goes back at once
	ValidNs  int64 // how long units may be spent, from the moment before the ask was sent
	Denied   bool
	Failed   bool  // the key could not be decided: the store did not answer, or it counts in 16 other windows
	WaitNs   int64 // if Denied: until the cost passes if nobody else asks; limit.Never
	HeldBack bool  // if Denied: only what is held leaves no room
	Blocked  bool  // if Denied: the key was blocked before
	Noted    bool  // the part's Report is noted, or need not be: see State.Note
	// Starting says why a part has Failed whose Report is noted: the store has no state yet.
	// For WaitNs more, workers report what they hold.
	Starting bool
	Windows  []Standing
}

// Standing is how one window of a key stands over all proxies.
type Standing struct {
	Used    uint32
	ResetNs int64 // until the window has forgotten what it has counted, from the answer on
}

// Clone returns a copy that shares no memory.
func (a *AskResult) Clone() *AskResult {
	c := *a
	c.Grants = slices.Clone(a.Grants)
	for i := range c.Grants {
		c.Grants[i].Windows = slices.Clone(c.Grants[i].Windows)
	}
	return &c
}
