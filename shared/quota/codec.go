package quota

import "github.com/sluice-ratelimit/sluice/shared/limit"

// maxItems is no bound of its own: a message of MaxMessageBytes has fewer items.
const maxItems = MaxMessageBytes

// Append appends the message's bytes to b.
func (m *Asks) Append(b []byte) []byte {
	c := coder{b: b}
	m.fields(&c)
	return c.b
}

// Append appends the message's bytes to b.
func (m *Grants) Append(b []byte) []byte {
	c := coder{b: b}
	m.fields(&c)
	return c.b
}

// Decode reads a message from its bytes. It uses the memory of the message that m
// held before, and keeps nothing of b. Fields that it does not know are skipped.
func (m *Asks) Decode(b []byte) error {
	c := reader(b)
	for c.next() {
		m.fields(&c)
	}
	return c.err
}

// Decode reads a message from its bytes. It uses the memory of the message that m
// held before, and keeps nothing of b. Fields that it does not know are skipped.
func (m *Grants) Decode(b []byte) error {
	c := reader(b)
	for c.next() {
		m.fields(&c)
	}
	return c.err
}

func (m *Asks) fields(c *coder) {
	c.text(1, &m.Domain, MaxDomainBytes)
	c.fixed64(2, &m.Process)
	for c.list(); item(c, 3, &m.Definitions, MaxDefinitions, 1<<2|1<<3); {
		for d := &m.Definitions[c.index()]; c.next(); {
			d.fields(c)
		}
	}
	for c.list(); item(c, 4, &m.Asks, maxItems, 1<<2); {
		for a := &m.Asks[c.index()]; c.next(); {
			a.fields(c)
		}
	}
	for c.list(); item(c, 5, &m.Returns, maxItems, 0); {
		for r := &m.Returns[c.index()]; c.next(); {
			c.u32(1, &r.Grant)
			c.u32(2, &r.Units)
		}
	}
}

func (d *Definition) fields(c *coder) {
	c.u32(1, &d.ID)
	c.key(2, &d.Counter)
	for c.list(); item(c, 3, &d.Windows, MaxWindows, 0); {
		for w := &d.Windows[c.index()]; c.next(); {
			windowFields(c, w)
		}
	}
	c.u32(4, &d.Lease)
	c.flag(5, &d.CountDenied)
}

func windowFields(c *coder, w *limit.Window) {
	number(c, 1, &w.Algorithm, 1<<8-1)
	c.u32(2, &w.Limit)
	number(c, 3, &w.PeriodNs, max64)
	number(c, 4, &w.OffsetNs, max64)
	number(c, 5, &w.Jitter, 100)
	c.flag(6, &w.Elastic)
	c.u32(7, &w.Burst)
	number(c, 8, &w.Units, 1<<16-1)
	c.flag(9, &w.Unlimited)
}

func (a *Ask) fields(c *coder) {
	c.u32(1, &a.ID)
	for c.list(); item(c, 2, &a.Parts, MaxGroup, 1<<2); {
		for p := &a.Parts[c.index()]; c.next(); {
			p.fields(c)
		}
	}
}

func (p *Part) fields(c *coder) {
	c.u32(1, &p.Definition)
	c.key(2, &p.Key)
	c.u32(3, &p.Cost)
	c.u32(4, &p.Waiting)
	c.u32(5, &p.Ahead)
	c.u32(6, &p.Spent)
	c.flag(7, &p.Inspect)
	c.flag(8, &p.Shadow)
	c.u32(9, &p.Held)
	number(c, 10, &p.Charged, max64)
	number(c, 11, &p.Known, max64)
	number(c, 12, &p.Since, max64)
	number(c, 13, &p.Number, max64)
	c.fixed64(14, &p.Worker)
}

func (m *Grants) fields(c *coder) {
	for c.list(); item(c, 1, &m.Results, maxItems, 0); {
		for a := &m.Results[c.index()]; c.next(); {
			a.fields(c)
		}
	}
	c.u32(2, &m.Proxies)
}

func (a *AskResult) fields(c *coder) {
	c.u32(1, &a.ID)
	number(c, 2, &a.Result, 1<<8-1)
	for c.list(); item(c, 3, &a.Grants, MaxGroup, 0); {
		for g := &a.Grants[c.index()]; c.next(); {
			g.fields(c)
		}
	}
}

func (g *Grant) fields(c *coder) {
	c.u32(1, &g.Number)
	c.u32(2, &g.Units)
	number(c, 3, &g.ValidNs, max64)
	c.flag(4, &g.Denied)
	number(c, 5, &g.WaitNs, max64)
	c.flag(7, &g.Leased)
	c.flag(8, &g.Failed)
	c.flag(9, &g.Held)
	c.flag(10, &g.Noted)
	c.flag(11, &g.Starting)
	for c.list(); item(c, 6, &g.Windows, MaxWindows, 0); {
		for w := &g.Windows[c.index()]; c.next(); {
			c.u32(1, &w.Used)
			number(c, 2, &w.ResetNs, max64)
		}
	}
}
