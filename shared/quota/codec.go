package quota

import (
	"errors"
	"slices"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// The messages' bytes, in the order of docs/quota.proto: each message's append beside its
// decode. A decode uses the memory of what it decodes into, keeps nothing of the bytes and
// skips fields that it does not know.

// Why bytes are not a message, beside the errors of package wire.
var (
	errLong   = errors.New("the message is longer than 64 KiB")
	errKey    = errors.New("a key or counter has not 16 bytes")
	errDomain = errors.New("the domain is longer than 128 bytes or not UTF-8")
	errCount  = errors.New("a list is too long")
	errNeeds  = errors.New("a key, a counter, or all windows of a definition or parts of an ask are missing")
)

// noMax is the bound of lists that only the size of the message bounds.
const noMax = MaxMessageBytes

// Append appends the message's bytes to b.
func (m *Asks) Append(b []byte) []byte {
	b = wire.AppendBytes(b, 1, m.Domain)
	b = wire.AppendFixed64(b, 2, m.Process)
	start := 0
	for i := range m.Definitions {
		b, start = wire.BeginMessage(b, 3)
		b = wire.EndMessage(appendDefinition(b, &m.Definitions[i]), start)
	}
	for i := range m.Asks {
		b, start = wire.BeginMessage(b, 4)
		b = wire.EndMessage(appendAsk(b, &m.Asks[i]), start)
	}
	for i := range m.Returns {
		b, start = wire.BeginMessage(b, 5)
		b = wire.EndMessage(appendReturn(b, &m.Returns[i]), start)
	}
	return b
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
		case 1:
			m.Domain = readDomain(&r)
		case 2:
			m.Process = r.Fixed64()
		case 3:
			decodeNext(&r, &m.Definitions, MaxDefinitions, decodeDefinition)
		case 4:
			decodeNext(&r, &m.Asks, noMax, decodeAsk)
		case 5:
			decodeNext(&r, &m.Returns, noMax, decodeReturn)
		}
	}
	return r.Err()
}

func appendDefinition(b []byte, d *Definition) []byte {
	b = wire.AppendUint(b, 1, d.ID)
	b = wire.AppendBytes(b, 2, d.Counter[:])
	start := 0
	for i := range d.Windows {
		b, start = wire.BeginMessage(b, 3)
		b = wire.EndMessage(appendWindow(b, &d.Windows[i]), start)
	}
	b = wire.AppendUint(b, 4, d.Lease)
	return wire.AppendBool(b, 5, d.CountDenied)
}

func decodeDefinition(d *Definition, b []byte) error {
	*d = Definition{Windows: d.Windows[:0]}
	hasCounter := false
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			d.ID = r.Uint32()
		case 2:
			d.Counter, hasCounter = readKey(&r), true
		case 3:
			decodeNext(&r, &d.Windows, MaxWindows, decodeWindow)
		case 4:
			d.Lease = r.Uint32()
		case 5:
			d.CountDenied = r.Bool()
		}
	}
	if !hasCounter || len(d.Windows) == 0 {
		r.Fail(errNeeds)
	}
	return r.Err()
}

func appendWindow(b []byte, w *limit.Window) []byte {
	b = wire.AppendUint(b, 1, w.Algorithm)
	b = wire.AppendUint(b, 2, w.Limit)
	b = wire.AppendUint(b, 3, w.PeriodNs)
	b = wire.AppendUint(b, 4, w.OffsetNs)
	b = wire.AppendUint(b, 5, w.Jitter)
	b = wire.AppendBool(b, 6, w.Elastic)
	b = wire.AppendUint(b, 7, w.Burst)
	b = wire.AppendUint(b, 8, w.Units)
	return wire.AppendBool(b, 9, w.Unlimited)
}

func decodeWindow(w *limit.Window, b []byte) error {
	*w = limit.Window{}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			w.Algorithm = limit.Algorithm(r.Uint(1<<8 - 1))
		case 2:
			w.Limit = r.Uint32()
		case 3:
			w.PeriodNs = r.Int64()
		case 4:
			w.OffsetNs = r.Int64()
		case 5:
			w.Jitter = uint8(r.Uint(100))
		case 6:
			w.Elastic = r.Bool()
		case 7:
			w.Burst = r.Uint32()
		case 8:
			w.Units = uint16(r.Uint(1<<16 - 1))
		case 9:
			w.Unlimited = r.Bool()
		}
	}
	return r.Err()
}

func appendAsk(b []byte, a *Ask) []byte {
	b = wire.AppendUint(b, 1, a.ID)
	start := 0
	for i := range a.Parts {
		b, start = wire.BeginMessage(b, 2)
		b = wire.EndMessage(appendPart(b, &a.Parts[i]), start)
	}
	return b
}

func decodeAsk(a *Ask, b []byte) error {
	*a = Ask{Parts: a.Parts[:0]}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			a.ID = r.Uint32()
		case 2:
			decodeNext(&r, &a.Parts, MaxGroup, decodePart)
		}
	}
	if len(a.Parts) == 0 {
		r.Fail(errNeeds)
	}
	return r.Err()
}

func appendPart(b []byte, p *Part) []byte {
	b = wire.AppendUint(b, 1, p.Definition)
	b = wire.AppendBytes(b, 2, p.Key[:])
	b = wire.AppendUint(b, 3, p.Cost)
	b = wire.AppendUint(b, 4, p.Waiting)
	b = wire.AppendUint(b, 5, p.Ahead)
	b = wire.AppendUint(b, 6, p.Spent)
	b = wire.AppendBool(b, 7, p.Inspect)
	b = wire.AppendBool(b, 8, p.Shadow)
	b = wire.AppendUint(b, 9, p.Held)
	b = wire.AppendUint(b, 10, p.Charged)
	b = wire.AppendUint(b, 11, p.Known)
	b = wire.AppendUint(b, 12, p.Since)
	b = wire.AppendUint(b, 13, p.Number)
	b = wire.AppendFixed64(b, 14, p.Worker)
	return wire.AppendBool(b, 15, p.NoBlock)
}

func decodePart(p *Part, b []byte) error {
	*p = Part{}
	hasKey := false
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			p.Definition = r.Uint32()
		case 2:
			p.Key, hasKey = readKey(&r), true
		case 3:
			p.Cost = r.Uint32()
		case 4:
			p.Waiting = r.Uint32()
		case 5:
			p.Ahead = r.Uint32()
		case 6:
			p.Spent = r.Uint32()
		case 7:
			p.Inspect = r.Bool()
		case 8:
			p.Shadow = r.Bool()
		case 9:
			p.Held = r.Uint32()
		case 10:
			p.Charged = r.Uint64()
		case 11:
			p.Known = r.Uint64()
		case 12:
			p.Since = r.Uint64()
		case 13:
			p.Number = r.Uint64()
		case 14:
			p.Worker = r.Fixed64()
		case 15:
			p.NoBlock = r.Bool()
		}
	}
	if !hasKey {
		r.Fail(errNeeds)
	}
	return r.Err()
}

func appendReturn(b []byte, g *Return) []byte {
	b = wire.AppendUint(b, 1, g.Grant)
	return wire.AppendUint(b, 2, g.Units)
}

func decodeReturn(g *Return, b []byte) error {
	*g = Return{}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			g.Grant = r.Uint32()
		case 2:
			g.Units = r.Uint32()
		}
	}
	return r.Err()
}

// Append appends the message's bytes to b.
func (m *Results) Append(b []byte) []byte {
	start := 0
	for i := range m.Results {
		b, start = wire.BeginMessage(b, 1)
		b = wire.EndMessage(appendAskResult(b, &m.Results[i]), start)
	}
	return wire.AppendUint(b, 2, m.Proxies)
}

// Decode reads a message from its bytes. It uses the memory of the message that m
// held before, and keeps nothing of b. Fields that it does not know are skipped.
func (m *Results) Decode(b []byte) error {
	*m = Results{Results: m.Results[:0]}
	if len(b) > MaxMessageBytes {
		return errLong
	}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			decodeNext(&r, &m.Results, noMax, decodeAskResult)
		case 2:
			m.Proxies = r.Uint32()
		}
	}
	return r.Err()
}

func appendAskResult(b []byte, a *AskResult) []byte {
	b = wire.AppendUint(b, 1, a.ID)
	b = wire.AppendUint(b, 2, a.Outcome)
	start := 0
	for i := range a.Grants {
		b, start = wire.BeginMessage(b, 3)
		b = wire.EndMessage(appendGrant(b, &a.Grants[i]), start)
	}
	return b
}

func decodeAskResult(a *AskResult, b []byte) error {
	*a = AskResult{Grants: a.Grants[:0]}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			a.ID = r.Uint32()
		case 2:
			a.Outcome = Outcome(r.Uint(1<<8 - 1))
		case 3:
			decodeNext(&r, &a.Grants, MaxGroup, decodeGrant)
		}
	}
	return r.Err()
}

// appendGrant writes the windows last: a message's fields may come in any order.
func appendGrant(b []byte, g *Grant) []byte {
	b = wire.AppendUint(b, 1, g.Number)
	b = wire.AppendUint(b, 2, g.Units)
	b = wire.AppendUint(b, 3, g.ValidNs)
	b = wire.AppendBool(b, 4, g.Denied)
	b = wire.AppendUint(b, 5, g.WaitNs)
	b = wire.AppendBool(b, 7, g.Leased)
	b = wire.AppendBool(b, 8, g.Failed)
	b = wire.AppendBool(b, 9, g.HeldBack)
	b = wire.AppendBool(b, 10, g.Noted)
	b = wire.AppendBool(b, 11, g.Starting)
	b = wire.AppendBool(b, 12, g.Blocked)
	start := 0
	for i := range g.Windows {
		b, start = wire.BeginMessage(b, 6)
		b = wire.EndMessage(appendStanding(b, &g.Windows[i]), start)
	}
	return b
}

func decodeGrant(g *Grant, b []byte) error {
	*g = Grant{Windows: g.Windows[:0]}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			g.Number = r.Uint32()
		case 2:
			g.Units = r.Uint32()
		case 3:
			g.ValidNs = r.Int64()
		case 4:
			g.Denied = r.Bool()
		case 5:
			g.WaitNs = r.Int64()
		case 6:
			decodeNext(&r, &g.Windows, MaxWindows, decodeStanding)
		case 7:
			g.Leased = r.Bool()
		case 8:
			g.Failed = r.Bool()
		case 9:
			g.HeldBack = r.Bool()
		case 10:
			g.Noted = r.Bool()
		case 11:
			g.Starting = r.Bool()
		case 12:
			g.Blocked = r.Bool()
		}
	}
	return r.Err()
}

func appendStanding(b []byte, s *Standing) []byte {
	b = wire.AppendUint(b, 1, s.Used)
	return wire.AppendUint(b, 2, s.ResetNs)
}

func decodeStanding(s *Standing, b []byte) error {
	*s = Standing{}
	r := wire.NewReader(b)
	for r.Next() {
		switch r.ID() {
		case 1:
			s.Used = r.Uint32()
		case 2:
			s.ResetNs = r.Int64()
		}
	}
	return r.Err()
}

// decodeNext decodes the reader's field, a message, as the list's next one. Beyond the list's
// end there may be a message of earlier bytes: decode uses its memory.
func decodeNext[T any](r *wire.Reader, list *[]T, most int, decode func(*T, []byte) error) {
	b, n := r.Bytes(), len(*list)
	if n >= most {
		r.Fail(errCount)
	}
	if r.Err() != nil {
		return
	}
	*list = slices.Grow(*list, 1)[:n+1]
	r.Fail(decode(&(*list)[n], b))
}

func readDomain(r *wire.Reader) string {
	b := r.Bytes()
	if len(b) > MaxDomainBytes || !utf8.Valid(b) {
		r.Fail(errDomain)
	}
	return string(b)
}

func readKey(r *wire.Reader) (key [16]byte) {
	b := r.Bytes()
	if len(b) != len(key) {
		r.Fail(errKey)
	}
	copy(key[:], b)
	return key
}
