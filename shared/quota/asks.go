package quota

import "github.com/sluice-ratelimit/sluice/shared/wire"

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

// The numbers of the fields of Asks.
const (
	asksDomain      = 1
	asksProcess     = 2
	asksDefinitions = 3
	asksAsks        = 4
	asksReturns     = 5
)

// Append appends the message's bytes to b.
func (m *Asks) Append(b []byte) []byte {
	b = wire.AppendBytes(b, asksDomain, m.Domain)
	b = wire.AppendFixed64(b, asksProcess, m.Process)
	b = appendEach(b, asksDefinitions, m.Definitions, appendDefinition)
	b = appendEach(b, asksAsks, m.Asks, appendAsk)
	return appendEach(b, asksReturns, m.Returns, appendReturn)
}

// Decode reads a message from its bytes. It uses the memory of the message that m
// held before, and keeps nothing of b. Fields that it does not know are skipped.
func (m *Asks) Decode(b []byte) error {
	*m = Asks{Definitions: m.Definitions[:0], Asks: m.Asks[:0], Returns: m.Returns[:0]}
	if len(b) > MaxMessageBytes {
		return errLong
	}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case asksDomain:
			m.Domain = readDomain(&r)
		case asksProcess:
			m.Process = r.Fixed64()
		case asksDefinitions:
			decodeNext(&r, &m.Definitions, MaxDefinitions, decodeDefinition)
		case asksAsks:
			decodeNext(&r, &m.Asks, noMax, decodeAsk)
		case asksReturns:
			decodeNext(&r, &m.Returns, noMax, decodeReturn)
		}
	}
	return r.Err()
}

// Ask asks for units of all its parts: all are granted or none, but for the parts in shadow.
type Ask struct {
	ID    uint32 // the worker's own number, in the answer again
	Parts []Part
}

// The numbers of the fields of Ask.
const (
	askID    = 1
	askParts = 2
)

func appendAsk(b []byte, a *Ask) []byte {
	b = wire.AppendUint(b, askID, a.ID)
	return appendEach(b, askParts, a.Parts, appendPart)
}

func decodeAsk(a *Ask, b []byte) error {
	*a = Ask{Parts: a.Parts[:0]}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case askID:
			a.ID = r.Uint32()
		case askParts:
			decodeNext(&r, &a.Parts, MaxParts, decodePart)
		}
	}
	if len(a.Parts) == 0 {
		r.Fail(errNeeds)
	}
	return r.Err()
}

// Part asks for units of one key, or reports what is held of it, or both:
//
//	a part that              has
//	asks for units to spend  Cost, Waiting; Ahead if they may be leased; Uncharged; Shadow, NoBlock
//	asks for units to hold   Cost, Waiting; the Report; Shadow, NoBlock
//	asks only ahead of need  Ahead, Uncharged
//	only reports             the Report
//	only inspects            Inspect
//
// In the filter, ask.go of package lease says which rule asks for which.
type Part struct {
	Definition uint32
	Key        [16]byte // see KeyOf

	Cost    uint32 // of the request that has waited longest: a grant has at least that
	Waiting uint32 // units that all waiting requests of the worker need, at least Cost
	Ahead   uint32 // units that the proxy expects to need within HorizonNs
	// Uncharged are units that the proxy has admitted by itself while it could not ask. They are counted whatever is
	// left, at most a window's limit.
	Uncharged uint32

	Inspect bool // grant nothing, only say how the key stands
	Shadow  bool // whether this part is denied does not matter to the other parts
	NoBlock bool // a denial begins no block and prolongs none

	Report // of a definition that holds: what the worker holds and has charged
}

// Report is what one worker of a proxy holds of a key, and what it has charged in all. It says
// how things stand, not what changed: a report that is lost, late or repeated harms nothing,
// and any stream may carry it.
type Report struct {
	Worker  uint64 // whose report it is: another number for each worker and configuration
	Held    uint32 // units that it holds, without what the part asks for
	Charged uint64 // sum of the costs of settled holds, from report number Since on
	Known   uint64 // the part of Charged that the worker knows to be counted
	Since   uint64 // number of the report from which Charged is summed: the first one since the Sums were last idle
	Number  uint64 // of the report: each report of the worker has a larger one; 0 = no report
}

// The numbers of the fields of Part.
const (
	partDefinition = 1
	partKey        = 2
	partCost       = 3
	partWaiting    = 4
	partAhead      = 5
	partUncharged  = 6
	partInspect    = 7
	partShadow     = 8
	partHeld       = 9
	partCharged    = 10
	partKnown      = 11
	partSince      = 12
	partNumber     = 13
	partWorker     = 14
	partNoBlock    = 15
)

func appendPart(b []byte, p *Part) []byte {
	b = wire.AppendUint(b, partDefinition, p.Definition)
	b = wire.AppendBytes(b, partKey, p.Key[:])
	b = wire.AppendUint(b, partCost, p.Cost)
	b = wire.AppendUint(b, partWaiting, p.Waiting)
	b = wire.AppendUint(b, partAhead, p.Ahead)
	b = wire.AppendUint(b, partUncharged, p.Uncharged)
	b = wire.AppendBool(b, partInspect, p.Inspect)
	b = wire.AppendBool(b, partShadow, p.Shadow)
	b = wire.AppendUint(b, partHeld, p.Held)
	b = wire.AppendUint(b, partCharged, p.Charged)
	b = wire.AppendUint(b, partKnown, p.Known)
	b = wire.AppendUint(b, partSince, p.Since)
	b = wire.AppendUint(b, partNumber, p.Number)
	b = wire.AppendFixed64(b, partWorker, p.Worker)
	return wire.AppendBool(b, partNoBlock, p.NoBlock)
}

func decodePart(p *Part, b []byte) error {
	*p = Part{}
	hasKey := false
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case partDefinition:
			p.Definition = r.Uint32()
		case partKey:
			p.Key, hasKey = readKey(&r), true
		case partCost:
			p.Cost = r.Uint32()
		case partWaiting:
			p.Waiting = r.Uint32()
		case partAhead:
			p.Ahead = r.Uint32()
		case partUncharged:
			p.Uncharged = r.Uint32()
		case partInspect:
			p.Inspect = r.Bool()
		case partShadow:
			p.Shadow = r.Bool()
		case partHeld:
			p.Held = r.Uint32()
		case partCharged:
			p.Charged = r.Uint64()
		case partKnown:
			p.Known = r.Uint64()
		case partSince:
			p.Since = r.Uint64()
		case partNumber:
			p.Number = r.Uint64()
		case partWorker:
			p.Worker = r.Fixed64()
		case partNoBlock:
			p.NoBlock = r.Bool()
		}
	}
	if !hasKey {
		r.Fail(errNeeds)
	}
	return r.Err()
}

// Return gives back units of a grant, on the stream that got the grant, after that stream's first answer. A grant may
// have several returns, each of other units of it.
type Return struct {
	Grant uint32 // number of the grant on this stream
	Units uint32 // that were not spent
}

// The numbers of the fields of Return.
const (
	returnGrant = 1
	returnUnits = 2
)

func appendReturn(b []byte, g *Return) []byte {
	b = wire.AppendUint(b, returnGrant, g.Grant)
	return wire.AppendUint(b, returnUnits, g.Units)
}

func decodeReturn(g *Return, b []byte) error {
	*g = Return{}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case returnGrant:
			g.Grant = r.Uint32()
		case returnUnits:
			g.Units = r.Uint32()
		}
	}
	return r.Err()
}
