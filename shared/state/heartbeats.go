package state

import (
	"math"
	"slices"
)

// An owner that goes without a successor says no goodbye: Envoy does not tell a
// filter whether another one of its name comes. So owners show up once in a
// round, and one that has missed several is taken off its tables. Rounds are
// counted, not timed: a clock that steps ahead by an hour ends one of them,
// which no owner misses that still ticks.
//
// That is a value of its own beside the directory, all integers little endian:
//
//	0  u8   format version, 1
//	1  u8   kind, 4 = owners
//	2  u16  owners m
//	4  u32  round
//	8  i64  when it began
//	16      m × u64 owner, u32 round in which it showed up last
const (
	kindHeartbeats      = 4
	heartbeatsHeadBytes = 16
	heartbeatBytes      = 12

	// RoundNs is how long a round lasts: how often each owner writes.
	RoundNs int64 = 60_000_000_000
	// MissedRounds is how many rounds an owner may miss before its tables wait
	// for their windows to end.
	MissedRounds = 5
)

var heartbeatsKey = []byte("sluice/owners")

type heartbeats struct {
	round   uint32
	beganNs int64
	owners  []heartbeat
}

type heartbeat struct {
	id    uint64
	round uint32
}

func readHeartbeats(b []byte) (p heartbeats, ok bool) {
	if len(b) < heartbeatsHeadBytes || b[0] != formatVersion || b[1] != kindHeartbeats ||
		len(b) != heartbeatsHeadBytes+int(le.Uint16(b[2:]))*heartbeatBytes {
		return p, false
	}
	p.round, p.beganNs = le.Uint32(b[4:]), int64(le.Uint64(b[8:]))
	for b = b[heartbeatsHeadBytes:]; len(b) > 0; b = b[heartbeatBytes:] {
		p.owners = append(p.owners, heartbeat{le.Uint64(b), le.Uint32(b[8:])})
	}
	return p, true
}

func (p *heartbeats) append(b []byte) []byte {
	b = append(b, formatVersion, kindHeartbeats)
	b = le.AppendUint16(b, uint16(len(p.owners)))
	b = le.AppendUint32(b, p.round)
	b = le.AppendUint64(b, uint64(p.beganNs))
	for _, o := range p.owners {
		b = le.AppendUint64(b, o.id)
		b = le.AppendUint32(b, o.round)
	}
	return b
}

func (p *heartbeats) find(id uint64) int {
	return slices.IndexFunc(p.owners, func(o heartbeat) bool { return o.id == id })
}

// over reports whether the round has ended; one of a clock that was set back
// has.
func (p *heartbeats) over(now int64) bool {
	return now-p.beganNs >= RoundNs || now < p.beganNs-RoundNs
}

// show notes that the owner is there.
func (p *heartbeats) renew(id uint64) {
	if i := p.find(id); i >= 0 {
		p.owners[i].round = p.round
	} else {
		p.owners = append(p.owners, heartbeat{id, p.round})
	}
}

// begin begins a round at now: owners of tables that have not shown up yet are
// awaited from now on, those without tables are forgotten. It returns the ones
// that have missed too many rounds.
func (p *heartbeats) begin(now int64, d *directory) (gone []uint64) {
	p.round++
	p.beganNs = now
	holds := make(map[uint64]bool)
	for i := range d.tables {
		for _, o := range d.tables[i].owners {
			holds[o.id] = true
			if p.find(o.id) < 0 {
				p.renew(o.id)
			}
		}
	}
	p.owners = slices.DeleteFunc(p.owners, func(o heartbeat) bool {
		missed := p.round-o.round > MissedRounds
		if missed && holds[o.id] {
			gone = append(gone, o.id)
		}
		return missed || !holds[o.id]
	})
	return gone
}

// renewHeartbeat shows that the owner is there, once in a round, and takes those who
// are not off their tables. An owner that nobody has counted for is not
// mentioned, so that a configuration that is refused leaves no trace.
func (t *Tables) renewHeartbeat(now int64, holds bool) Status {
	for range maxRetries {
		value, cas, status := t.store.Get(heartbeatsKey)
		p, ok := heartbeats{beganNs: now}, true
		switch status {
		case OK:
			p, ok = readHeartbeats(value)
		case NotFound:
			cas = CreateOnly
		default:
			return Failed
		}
		if !ok {
			return Failed
		}
		if i := p.find(t.self.id); i < 0 && !holds || i >= 0 && p.owners[i].round == p.round && !p.over(now) {
			return OK
		}
		p.renew(t.self.id)
		var gone []uint64
		if p.over(now) {
			d, status := t.directory()
			if status != OK {
				return status
			}
			gone = p.begin(now, &d)
			if p.find(t.self.id) >= 0 { // it has tables
				p.renew(t.self.id)
			}
		}
		switch t.store.Set(heartbeatsKey, p.append(nil), cas) {
		case OK:
			return t.dropOwners(gone, now)
		case Mismatch:
		default:
			return Failed
		}
	}
	return Failed
}

// directory reads the directory.
func (t *Tables) directory() (d directory, status Status) {
	value, _, status := t.store.Get(directoryKey)
	if status != OK {
		return d, status
	}
	d, ok := readDirectory(value)
	if !ok {
		return d, Failed
	}
	return d, OK
}

// dropOwners takes owners off their tables. One that was only late comes back with
// its next tick and finds them as they were.
func (t *Tables) dropOwners(gone []uint64, now int64) Status {
	if len(gone) == 0 {
		return OK
	}
	return t.update(func(d *directory) {
		for i := range d.tables {
			for _, id := range gone {
				d.tables[i].leave(owner{id, math.MaxInt64}, now)
			}
		}
	})
}
