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

// heartbeats are those of all owners, as of the current round.
type heartbeats struct {
	round   uint32
	beganNs int64 // when the round began
	owners  []heartbeat
}

// heartbeat is the last one of an owner.
type heartbeat struct {
	id    uint64
	round uint32
}

func readHeartbeats(b []byte) (h heartbeats, ok bool) {
	if len(b) < heartbeatsHeadBytes || b[0] != formatVersion || b[1] != kindHeartbeats ||
		len(b) != heartbeatsHeadBytes+int(le.Uint16(b[2:]))*heartbeatBytes {
		return h, false
	}
	h.round = le.Uint32(b[4:])
	h.beganNs = int64(le.Uint64(b[8:]))
	for b = b[heartbeatsHeadBytes:]; len(b) > 0; b = b[heartbeatBytes:] {
		h.owners = append(h.owners, heartbeat{le.Uint64(b), le.Uint32(b[8:])})
	}
	return h, true
}

func (h *heartbeats) append(b []byte) []byte {
	b = append(b, formatVersion, kindHeartbeats)
	b = le.AppendUint16(b, uint16(len(h.owners)))
	b = le.AppendUint32(b, h.round)
	b = le.AppendUint64(b, uint64(h.beganNs))
	for _, o := range h.owners {
		b = le.AppendUint64(b, o.id)
		b = le.AppendUint32(b, o.round)
	}
	return b
}

func (h *heartbeats) find(id uint64) int {
	return slices.IndexFunc(h.owners, func(o heartbeat) bool { return o.id == id })
}

// roundEnded reports whether the round has ended, also because the clock was set
// back.
func (h *heartbeats) roundEnded(now int64) bool {
	return now-h.beganNs >= RoundNs || now < h.beganNs-RoundNs
}

// renew sets the owner's heartbeat to this round.
func (h *heartbeats) renew(id uint64) {
	if i := h.find(id); i >= 0 {
		h.owners[i].round = h.round
	} else {
		h.owners = append(h.owners, heartbeat{id, h.round})
	}
}

// beginRound begins a round at now. It adds owners of tables that have no
// heartbeat yet and removes owners without tables. It returns the owners that have
// missed too many rounds.
func (h *heartbeats) beginRound(now int64, d *directory) (gone []uint64) {
	h.round++
	h.beganNs = now
	hasTables := make(map[uint64]bool)
	for i := range d.tables {
		for _, o := range d.tables[i].owners {
			hasTables[o.id] = true
			if h.find(o.id) < 0 {
				h.renew(o.id)
			}
		}
	}
	for _, o := range h.owners {
		if h.hasMissed(o) && hasTables[o.id] {
			gone = append(gone, o.id)
		}
	}
	h.owners = slices.DeleteFunc(h.owners, func(o heartbeat) bool {
		return h.hasMissed(o) || !hasTables[o.id]
	})
	return gone
}

// hasMissed reports whether the owner has missed too many rounds.
func (h *heartbeats) hasMissed(o heartbeat) bool { return h.round-o.round > MissedRounds }

// renewHeartbeat writes the owner's heartbeat once a round, and removes owners
// without heartbeats from their tables. An owner that has never counted writes
// none, so that a configuration that Envoy refuses leaves no trace.
func (ts *Tables) renewHeartbeat(now int64, hasTables bool) Status {
	var gone []uint64
	status := Update(ts.store, heartbeatsKey, func(old []byte) (next []byte, status Status) {
		gone = nil
		h := heartbeats{beganNs: now}
		if old != nil {
			stored, ok := readHeartbeats(old)
			if !ok {
				return nil, Failed
			}
			h = stored
		}
		if !h.isDue(ts.self.id, now, hasTables) {
			return nil, OK
		}
		h.renew(ts.self.id)
		if h.roundEnded(now) {
			d, status := ts.directory()
			if status != OK {
				return nil, status
			}
			gone = h.beginRound(now, &d)
			if h.find(ts.self.id) >= 0 { // it has tables
				h.renew(ts.self.id)
			}
		}
		return h.append(nil), OK
	})
	if status != OK {
		return status
	}
	return ts.dropOwners(gone, now)
}

// isDue reports whether the owner writes: it has no heartbeat yet and has tables, it has
// not written in this round, or the round is over.
func (h *heartbeats) isDue(id uint64, now int64, hasTables bool) bool {
	i := h.find(id)
	if i < 0 {
		return hasTables
	}
	return h.owners[i].round != h.round || h.roundEnded(now)
}

// dropOwners removes owners from their tables. An owner that was only late comes
// back with its next tick and finds its tables unchanged. If this worker dies before it has dropped them, they
// still have tables, so the next round gives them a heartbeat, and some worker finds again that they miss theirs.
func (ts *Tables) dropOwners(gone []uint64, now int64) Status {
	if len(gone) == 0 {
		return OK
	}
	return ts.update(func(d *directory) {
		for i := range d.tables {
			for _, id := range gone {
				d.tables[i].leave(owner{id, math.MaxInt64}, now)
			}
		}
	})
}
