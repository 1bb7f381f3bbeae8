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
func (m *Answers) Append(b []byte) []byte {
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
func (m *Answers) Decode(b []byte) error {
	c := reader(b)
	for c.next() {
		m.fields(&c)
	}
	return c.err
}

func (m *Asks) fields(c *coder) {
	c.text(1, &m.Domain, MaxDomainBytes)
	c.fixed64(2, &m.Process)
	for i := -1; item(c, 3, &m.Definitions, &i, MaxDefinitions, 1<<2|1<<3); {
		for c.next() {
			m.Definitions[i].fields(c)
		}
	}
	for i := -1; item(c, 4, &m.Asks, &i, maxItems, 1<<2); {
		for c.next() {
			m.Asks[i].fields(c)
		}
	}
	for i := -1; item(c, 5, &m.Returns, &i, maxItems, 0); {
		for c.next() {
			c.u32(1, &m.Returns[i].Grant)
			c.u32(2, &m.Returns[i].Units)
		}
	}
}

func (d *Definition) fields(c *coder) {
	c.u32(1, &d.ID)
	c.key(2, &d.Counter)
	for i := -1; item(c, 3, &d.Windows, &i, MaxWindows, 0); {
		for c.next() {
			windowFields(c, &d.Windows[i])
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
	for i := -1; item(c, 2, &a.Parts, &i, MaxGroup, 1<<2); {
		for c.next() {
			a.Parts[i].fields(c)
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

func (m *Answers) fields(c *coder) {
	for i := -1; item(c, 1, &m.Answers, &i, maxItems, 0); {
		for c.next() {
			m.Answers[i].fields(c)
		}
	}
	c.u32(2, &m.Proxies)
}

func (a *Answer) fields(c *coder) {
	c.u32(1, &a.ID)
	number(c, 2, &a.Result, 1<<8-1)
	for i := -1; item(c, 3, &a.Grants, &i, MaxGroup, 0); {
		for c.next() {
			a.Grants[i].fields(c)
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
	c.flag(10, &g.Stated)
	for i := -1; item(c, 6, &g.Windows, &i, MaxWindows, 0); {
		for c.next() {
			c.u32(1, &g.Windows[i].Used)
			number(c, 2, &g.Windows[i].ResetNs, max64)
		}
	}
}
