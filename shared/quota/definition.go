package quota

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// Definition is the windows of a counter with the limits that hold for some of
// its keys. A stream numbers its definitions itself; sending a number again
// replaces its definition.
type Definition struct {
	ID      uint32
	Counter [16]byte // the counter's stable identity
	// Windows are those that count, in the order of limit.Window.Compare. Then there may be a limit.Block, and a
	// limit.Concurrency is the last one. With either of them, nothing is leased. With a limit.Concurrency, units are
	// held until their answers are known, and parts report what is held. Stamp, FillNs and Pays do not travel.
	Windows []limit.Window
	// Lease is the most units that may be granted ahead of need to one proxy:
	// LeaseOff, LeaseAuto or a number.
	Lease uint32
	// CountDenied makes what waits for an ask that is denied count all the same, at most
	// a window's limit.
	CountDenied bool
}

// Values of Definition.Lease beside a number of units.
const (
	LeaseOff  = 0
	LeaseAuto = 1<<32 - 1
)

// CountsDenials reports whether each denied ask changes what the key has counted: also one of a
// key that is known to be denied must be sent.
func (d *Definition) CountsDenials() bool {
	block := d.Block()
	return d.CountDenied || block >= 0 && d.Windows[block].Elastic
}

// Block is the index of the limit.Block in Windows, -1 if there is none.
func (d *Definition) Block() int {
	for i := len(d.Windows) - 1; i >= 0; i-- { // it is near the end
		if d.Windows[i].Algorithm == limit.Block {
			return i
		}
	}
	return -1
}

// The numbers of the fields of Definition.
const (
	definitionID          = 1
	definitionCounter     = 2
	definitionWindows     = 3
	definitionLease       = 4
	definitionCountDenied = 5
)

func appendDefinition(b []byte, d *Definition) []byte {
	b = wire.AppendUint(b, definitionID, d.ID)
	b = wire.AppendBytes(b, definitionCounter, d.Counter[:])
	b = appendEach(b, definitionWindows, d.Windows, appendWindow)
	b = wire.AppendUint(b, definitionLease, d.Lease)
	return wire.AppendBool(b, definitionCountDenied, d.CountDenied)
}

func decodeDefinition(d *Definition, b []byte) error {
	*d = Definition{Windows: d.Windows[:0]}
	hasCounter := false
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case definitionID:
			d.ID = r.Uint32()
		case definitionCounter:
			d.Counter, hasCounter = readKey(&r), true
		case definitionWindows:
			decodeNext(&r, &d.Windows, MaxWindows, decodeWindow)
		case definitionLease:
			d.Lease = r.Uint32()
		case definitionCountDenied:
			d.CountDenied = r.Bool()
		}
	}
	if !hasCounter || len(d.Windows) == 0 {
		r.Fail(errNeeds)
	}
	return r.Err()
}

// The numbers of the fields of Window.
const (
	windowAlgorithm = 1
	windowLimit     = 2
	windowPeriodNs  = 3
	windowOffsetNs  = 4
	windowJitter    = 5
	windowElastic   = 6
	windowBurst     = 7
	windowUnits     = 8
	windowUnlimited = 9
)

func appendWindow(b []byte, w *limit.Window) []byte {
	b = wire.AppendUint(b, windowAlgorithm, w.Algorithm)
	b = wire.AppendUint(b, windowLimit, w.Limit)
	b = wire.AppendUint(b, windowPeriodNs, w.PeriodNs)
	b = wire.AppendUint(b, windowOffsetNs, w.OffsetNs)
	b = wire.AppendUint(b, windowJitter, w.Jitter)
	b = wire.AppendBool(b, windowElastic, w.Elastic)
	b = wire.AppendUint(b, windowBurst, w.Burst)
	b = wire.AppendUint(b, windowUnits, w.Units)
	return wire.AppendBool(b, windowUnlimited, w.Unlimited)
}

func decodeWindow(w *limit.Window, b []byte) error {
	*w = limit.Window{}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case windowAlgorithm:
			w.Algorithm = limit.Algorithm(r.Uint(1<<8 - 1))
		case windowLimit:
			w.Limit = r.Uint32()
		case windowPeriodNs:
			w.PeriodNs = r.Int64()
		case windowOffsetNs:
			w.OffsetNs = r.Int64()
		case windowJitter:
			w.Jitter = uint8(r.Uint(100))
		case windowElastic:
			w.Elastic = r.Bool()
		case windowBurst:
			w.Burst = r.Uint32()
		case windowUnits:
			w.Units = uint16(r.Uint(1<<16 - 1))
		case windowUnlimited:
			w.Unlimited = r.Bool()
		}
	}
	return r.Err()
}
