package state

import (
	"math"
	"slices"
)

// An owner cannot announce that it ends: Envoy does not tell a filter whether
// another one of its name follows. So each owner sends one heartbeat a round, and
// an owner that has missed several rounds is removed from its tables. Rounds are
// counted, not timed: if a clock steps ahead by an hour, only one round ends, and
// an owner that still ticks does not miss it.
//
// Heartbeats are one value beside the directory. All integers are little endian:
//
//	0  u8   format version, 1
//	1  u8   kind, 4 = heartbeats
//	2  u16  owners m
//	4  u32  round
//	8  i64  when the round began
//	16      m × u64 owner, u32 round of its last heartbeat
const (
	kindHeartbeats      = 4
	heartbeatsHeadBytes = 16
	heartbeatBytes      = 12

	// RoundNs is the length of a round in nanoseconds. Each owner writes once in it.
	RoundNs int64 = 60_000_000_000
	// MissedRounds is how many rounds an owner may miss before it is removed from its
	// tables.
	MissedRounds = 5
)

var heartbeatsKey = []byte("sluice/owners" + keySuffix)

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

// roundEnded reports whether the round has ended, also because the clock was set
// back.
func (p *heartbeats) roundEnded(now int64) bool {
	return now-p.beganNs >= RoundNs || now < p.beganNs-RoundNs
}

// renew sets the owner's heartbeat to this round.
func (p *heartbeats) renew(id uint64) {
	if i := p.find(id); i >= 0 {
		p.owners[i].round = p.round
	} else {
		p.owners = append(p.owners, heartbeat{id, p.round})
	}
}

// beginRound begins a round at now. It adds owners of tables that have no
// heartbeat yet and removes owners without tables. It returns the owners that have
// missed too many rounds.
func (p *heartbeats) beginRound(now int64, d *directory) (gone []uint64) {
	p.round++
	p.beganNs = now
	hasTables := make(map[uint64]bool)
	for i := range d.tables {
		for _, o := range d.tables[i].owners {
			hasTables[o.id] = true
			if p.find(o.id) < 0 {
				p.renew(o.id)
			}
		}
	}
	for _, o := range p.owners {
		if p.hasMissed(o) && hasTables[o.id] {
			gone = append(gone, o.id)
		}
	}
	p.owners = slices.DeleteFunc(p.owners, func(o heartbeat) bool {
		return p.hasMissed(o) || !hasTables[o.id]
	})
	return gone
}

// hasMissed reports whether the owner has missed too many rounds.
func (p *heartbeats) hasMissed(o heartbeat) bool { return p.round-o.round > MissedRounds }

// renewHeartbeat writes the owner's heartbeat once a round, and removes owners
// without heartbeats from their tables. An owner that has never counted writes
// none, so that a configuration that Envoy refuses leaves no trace.
func (t *Tables) renewHeartbeat(now int64, hasTables bool) Status {
	var gone []uint64
	status := Update(t.store, heartbeatsKey, func(old []byte) (next []byte, status Status) {
		gone = nil
		p := heartbeats{beganNs: now}
		if old != nil {
			stored, ok := readHeartbeats(old)
			if !ok {
				return nil, Failed
			}
			p = stored
		}
		if !p.isDue(t.self.id, now, hasTables) {
			return nil, OK
		}
		p.renew(t.self.id)
		if p.roundEnded(now) {
			d, status := t.directory()
			if status != OK {
				return nil, status
			}
			gone = p.beginRound(now, &d)
			if p.find(t.self.id) >= 0 { // it has tables
				p.renew(t.self.id)
			}
		}
		return p.append(nil), OK
	})
	if status != OK {
		return status
	}
	return t.dropOwners(gone, now)
}

// isDue reports whether the owner writes: it has no heartbeat yet and has tables, it has
// not written in this round, or the round is over.
func (p *heartbeats) isDue(id uint64, now int64, hasTables bool) bool {
	i := p.find(id)
	if i < 0 {
		return hasTables
	}
	return p.owners[i].round != p.round || p.roundEnded(now)
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

// dropOwners removes owners from their tables. An owner that was only late comes
// back with its next tick and finds its tables unchanged.
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
