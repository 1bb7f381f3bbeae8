package quota

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// maxItems is no bound of its own: a message of MaxMessageBytes has fewer items.
const maxItems = MaxMessageBytes

// Append appends the message's bytes to b.
func (m *Asks) Append(b []byte) []byte {
	if m.Domain != "" {
		b = binary.AppendUvarint(append(b, tag(1, wire.Bytes)), uint64(len(m.Domain)))
		b = append(b, m.Domain...)
	}
	if m.Process != 0 {
		b = binary.LittleEndian.AppendUint64(append(b, tag(2, wire.Fixed64)), m.Process)
	}
	var at int
	for i := range m.Definitions {
		b, at = open(b, 3)
		b = closed(m.Definitions[i].append(b), at)
	}
	for i := range m.Asks {
		b, at = open(b, 4)
		b = closed(m.Asks[i].append(b), at)
	}
	for _, r := range m.Returns {
		b, at = open(b, 5)
		b = appendNumber(b, 1, uint64(r.Grant))
		b = closed(appendNumber(b, 2, uint64(r.Units)), at)
	}
	return b
}

func (d *Definition) append(b []byte) []byte {
	b = appendNumber(b, 1, uint64(d.ID))
	b = appendKey(b, 2, &d.Counter)
	var at int
	for i := range d.Windows {
		b, at = open(b, 3)
		b = closed(appendWindow(b, &d.Windows[i]), at)
	}
	b = appendNumber(b, 4, uint64(d.Lease))
	return appendBool(b, 5, d.CountDenied)
}

func appendWindow(b []byte, w *limit.Window) []byte {
	b = appendNumber(b, 1, uint64(w.Algorithm))
	b = appendNumber(b, 2, uint64(w.Limit))
	b = appendNumber(b, 3, uint64(w.PeriodNs))
	b = appendNumber(b, 4, uint64(w.OffsetNs))
	b = appendNumber(b, 5, uint64(w.Jitter))
	b = appendBool(b, 6, w.Elastic)
	b = appendNumber(b, 7, uint64(w.Burst))
	b = appendNumber(b, 8, uint64(w.Units))
	return appendBool(b, 9, w.Unlimited)
}

func (a *Ask) append(b []byte) []byte {
	b = appendNumber(b, 1, uint64(a.ID))
	var at int
	for i := range a.Parts {
		p := &a.Parts[i]
		b, at = open(b, 2)
		b = appendNumber(b, 1, uint64(p.Definition))
		b = appendKey(b, 2, &p.Key)
		b = appendNumber(b, 3, uint64(p.Cost))
		b = appendNumber(b, 4, uint64(p.Waiting))
		b = appendNumber(b, 5, uint64(p.Ahead))
		b = appendNumber(b, 6, uint64(p.Spent))
		b = appendBool(b, 7, p.Inspect)
		b = appendBool(b, 8, p.Shadow)
		b = closed(p.appendLevel(b), at)
	}
	return b
}

// Append appends the message's bytes to b.
func (m *Answers) Append(b []byte) []byte {
	var at int
	for i := range m.Answers {
		b, at = open(b, 1)
		b = closed(m.Answers[i].append(b), at)
	}
	return appendNumber(b, 2, uint64(m.Proxies))
}

func (a *Answer) append(b []byte) []byte {
	b = appendNumber(b, 1, uint64(a.ID))
	b = appendNumber(b, 2, uint64(a.Result))
	var at int
	for i := range a.Grants {
		b, at = open(b, 3)
		b = closed(a.Grants[i].append(b), at)
	}
	return b
}

func (g *Grant) append(b []byte) []byte {
	b = appendNumber(b, 1, uint64(g.Number))
	b = appendNumber(b, 2, uint64(g.Units))
	b = appendNumber(b, 3, uint64(g.ValidNs))
	b = appendBool(b, 4, g.Denied)
	b = appendNumber(b, 5, uint64(g.WaitNs))
	b = appendBool(b, 7, g.Leased)
	b = appendBool(b, 8, g.Failed)
	b = appendBool(b, 9, g.Held)
	b = appendBool(b, 10, g.Stated)
	var at int
	for _, w := range g.Windows {
		b, at = open(b, 6)
		b = appendNumber(b, 1, uint64(w.Used))
		b = closed(appendNumber(b, 2, uint64(w.ResetNs)), at)
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
	return eachField(b, m.set)
}

func (m *Asks) set(f field) error {
	switch f.ID {
	case 1:
		return m.setDomain(f)
	case 2:
		return readFixed64(f, &m.Process)
	case 3:
		d, err := item(f, &m.Definitions, MaxDefinitions)
		if err != nil {
			return err
		}
		return d.decode(f.Bytes)
	case 4:
		a, err := item(f, &m.Asks, maxItems)
		if err != nil {
			return err
		}
		return a.decode(f.Bytes)
	case 5:
		r, err := item(f, &m.Returns, maxItems)
		if err != nil {
			return err
		}
		*r = Return{}
		return eachField(f.Bytes, r.set)
	}
	return nil
}

func (m *Asks) setDomain(f field) error {
	switch {
	case f.Wire != wire.Bytes:
		return errType
	case len(f.Bytes) > MaxDomainBytes || !utf8.Valid(f.Bytes):
		return errSize
	}
	m.Domain = string(f.Bytes)
	return nil
}

func (r *Return) set(f field) error {
	switch f.ID {
	case 1:
		return readUint32(f, &r.Grant)
	case 2:
		return readUint32(f, &r.Units)
	}
	return nil
}

func (d *Definition) decode(b []byte) error {
	*d = Definition{Windows: d.Windows[:0]}
	keyed := false
	err := eachField(b, func(f field) error {
		keyed = keyed || f.ID == 2
		return d.set(f)
	})
	switch {
	case err != nil:
		return err
	case !keyed:
		return errSize
	case len(d.Windows) == 0:
		return errBounds
	}
	return nil
}

func (d *Definition) set(f field) error {
	switch f.ID {
	case 1:
		return readUint32(f, &d.ID)
	case 2:
		return readKey(f, &d.Counter)
	case 3:
		w, err := item(f, &d.Windows, MaxWindows)
		if err != nil {
			return err
		}
		*w = limit.Window{}
		return eachField(f.Bytes, func(f field) error { return setWindow(w, f) })
	case 4:
		return readUint32(f, &d.Lease)
	case 5:
		return readBool(f, &d.CountDenied)
	}
	return nil
}

func setWindow(w *limit.Window, f field) error {
	switch f.ID {
	case 1:
		return read(f, &w.Algorithm, 1<<8-1)
	case 2:
		return readUint32(f, &w.Limit)
	case 3:
		return readInt64(f, &w.PeriodNs)
	case 4:
		return readInt64(f, &w.OffsetNs)
	case 5:
		return read(f, &w.Jitter, 100)
	case 6:
		return readBool(f, &w.Elastic)
	case 7:
		return readUint32(f, &w.Burst)
	case 8:
		return read(f, &w.Units, 1<<16-1)
	case 9:
		return readBool(f, &w.Unlimited)
	}
	return nil
}

func (a *Ask) decode(b []byte) error {
	*a = Ask{Parts: a.Parts[:0]}
	if err := eachField(b, a.set); err != nil {
		return err
	}
	if len(a.Parts) == 0 {
		return errBounds
	}
	return nil
}

func (a *Ask) set(f field) error {
	switch f.ID {
	case 1:
		return readUint32(f, &a.ID)
	case 2:
		p, err := item(f, &a.Parts, MaxGroup)
		if err != nil {
			return err
		}
		return p.decode(f.Bytes)
	}
	return nil
}

func (p *Part) decode(b []byte) error {
	*p = Part{}
	keyed := false
	err := eachField(b, func(f field) error {
		keyed = keyed || f.ID == 2
		return p.set(f)
	})
	if err == nil && !keyed {
		return errSize
	}
	return err
}

func (p *Part) set(f field) error {
	switch f.ID {
	case 1:
		return readUint32(f, &p.Definition)
	case 2:
		return readKey(f, &p.Key)
	case 3:
		return readUint32(f, &p.Cost)
	case 4:
		return readUint32(f, &p.Waiting)
	case 5:
		return readUint32(f, &p.Ahead)
	case 6:
		return readUint32(f, &p.Spent)
	case 7:
		return readBool(f, &p.Inspect)
	case 8:
		return readBool(f, &p.Shadow)
	}
	return p.Level.set(f)
}

// Decode reads a message from its bytes. It uses the memory of the message that m
// held before, and keeps nothing of b. Fields that it does not know are skipped.
func (m *Answers) Decode(b []byte) error {
	*m = Answers{Answers: m.Answers[:0]}
	if len(b) > MaxMessageBytes {
		return errLong
	}
	return eachField(b, m.set)
}

func (m *Answers) set(f field) error {
	switch f.ID {
	case 1:
		a, err := item(f, &m.Answers, maxItems)
		if err != nil {
			return err
		}
		*a = Answer{Grants: a.Grants[:0]}
		return eachField(f.Bytes, a.set)
	case 2:
		return readUint32(f, &m.Proxies)
	}
	return nil
}

func (a *Answer) set(f field) error {
	switch f.ID {
	case 1:
		return readUint32(f, &a.ID)
	case 2:
		return read(f, &a.Result, 1<<8-1)
	case 3:
		g, err := item(f, &a.Grants, MaxGroup)
		if err != nil {
			return err
		}
		*g = Grant{Windows: g.Windows[:0]}
		return eachField(f.Bytes, g.set)
	}
	return nil
}

func (g *Grant) set(f field) error {
	switch f.ID {
	case 1:
		return readUint32(f, &g.Number)
	case 2:
		return readUint32(f, &g.Units)
	case 3:
		return readInt64(f, &g.ValidNs)
	case 4:
		return readBool(f, &g.Denied)
	case 5:
		return readInt64(f, &g.WaitNs)
	case 7:
		return readBool(f, &g.Leased)
	case 8:
		return readBool(f, &g.Failed)
	case 9:
		return readBool(f, &g.Held)
	case 10:
		return readBool(f, &g.Stated)
	case 6:
		w, err := item(f, &g.Windows, MaxWindows)
		if err != nil {
			return err
		}
		*w = Standing{}
		return eachField(f.Bytes, w.set)
	}
	return nil
}

func (s *Standing) set(f field) error {
	switch f.ID {
	case 1:
		return readUint32(f, &s.Used)
	case 2:
		return readInt64(f, &s.ResetNs)
	}
	return nil
}
