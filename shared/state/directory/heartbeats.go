package directory

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/state/page"
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
	offHeartbeats       = 2 // how many
	offRound            = 4
	offBegan            = 8
	heartbeatsHeadBytes = 16
	heartbeatBytes      = 12

	// RoundNs is the length of a round in nanoseconds. Each owner writes once in it.
	RoundNs int64 = 60_000_000_000
	// MissedRounds is how many rounds an owner may miss before it is removed from its
	// tables.
	MissedRounds = 5
)

// Heartbeats are those of all owners, as of the current round.
type Heartbeats struct {
	Round   uint32
	BeganNs int64 // when the round began
	Owners  []Heartbeat
}

// Heartbeat is the last one of an owner.
type Heartbeat struct {
	ID    uint64
	Round uint32
}

// ReadHeartbeats decodes heartbeats; ok is false if this build cannot.
func ReadHeartbeats(b []byte) (h Heartbeats, ok bool) {
	if len(b) < heartbeatsHeadBytes || b[0] != page.FormatVersion || b[1] != kindHeartbeats ||
		len(b) != heartbeatsHeadBytes+int(le.Uint16(b[offHeartbeats:]))*heartbeatBytes {
		return h, false
	}
	h.Round = le.Uint32(b[offRound:])
	h.BeganNs = int64(le.Uint64(b[offBegan:]))
	for b = b[heartbeatsHeadBytes:]; len(b) > 0; b = b[heartbeatBytes:] {
		h.Owners = append(h.Owners, Heartbeat{le.Uint64(b), le.Uint32(b[8:])})
	}
	return h, true
}

// Append appends the heartbeats as they are stored.
func (h *Heartbeats) Append(b []byte) []byte {
	b = append(b, page.FormatVersion, kindHeartbeats)
	b = le.AppendUint16(b, uint16(len(h.Owners)))
	b = le.AppendUint32(b, h.Round)
	b = le.AppendUint64(b, uint64(h.BeganNs))
	for _, o := range h.Owners {
		b = le.AppendUint64(b, o.ID)
		b = le.AppendUint32(b, o.Round)
	}
	return b
}

func (h *Heartbeats) find(id uint64) int {
	return slices.IndexFunc(h.Owners, func(o Heartbeat) bool { return o.ID == id })
}

// RoundEnded reports whether the round has ended, also because the clock was set
// back.
func (h *Heartbeats) RoundEnded(now int64) bool {
	return now-h.BeganNs >= RoundNs || now < h.BeganNs-RoundNs
}

// Renew sets the owner's heartbeat to this round.
func (h *Heartbeats) Renew(id uint64) {
	if i := h.find(id); i >= 0 {
		h.Owners[i].Round = h.Round
	} else {
		h.Owners = append(h.Owners, Heartbeat{id, h.Round})
	}
}

// BeginRound begins a round at now, and renews the heartbeat of self. It adds owners of tables that have no heartbeat
// yet, and removes owners without tables, also self. It returns the owners that have missed too many rounds.
func (h *Heartbeats) BeginRound(now int64, self uint64, d *Directory) (gone []uint64) {
	h.Round++
	h.BeganNs = now
	h.Renew(self)
	hasTables := make(map[uint64]bool)
	for i := range d.Tables {
		for _, o := range d.Tables[i].Owners {
			hasTables[o.ID] = true
			if h.find(o.ID) < 0 {
				h.Renew(o.ID)
			}
		}
	}
	for _, o := range h.Owners {
		if h.hasMissed(o) && hasTables[o.ID] {
			gone = append(gone, o.ID)
		}
	}
	h.Owners = slices.DeleteFunc(h.Owners, func(o Heartbeat) bool {
		return h.hasMissed(o) || !hasTables[o.ID]
	})
	return gone
}

// hasMissed reports whether the owner has missed too many rounds.
func (h *Heartbeats) hasMissed(o Heartbeat) bool { return h.Round-o.Round > MissedRounds }

// IsDue reports whether the owner writes: it has no heartbeat yet and has tables, it has
// not written in this round, or the round is over.
func (h *Heartbeats) IsDue(id uint64, now int64, hasTables bool) bool {
	i := h.find(id)
	if i < 0 {
		return hasTables
	}
	return h.Owners[i].Round != h.Round || h.RoundEnded(now)
}
