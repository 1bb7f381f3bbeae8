// Package leased is what a proxy has leased of one key of a rule of scope cluster: units of grants that the quota
// service has deducted from the key already, and what the service last said of the key. It is a value and its bytes:
// package state keeps one of each key in the pages of a lease table, and package lease of the filter decides by it.
//
// Its invariant: units of a grant can be spent until its end, and go back by its number. So they stay apart by grant.
//
// These parts of a Lease have verbs of their own. All instants are of the monotonic clock of the proxy:
//
//	part       what it is                                      who changes it
//	Grants     units that may be spent                         Put, Spend, TakeOut; read by Left and LeftOf
//	denial     what the service has denied last                Deny, Block, Allow; read by Denies, Blocks, WaitNs
//	Uncharged  units admitted while the service was silent     Add, Remove, Tell, EndTelling
//	Rate       how fast units are spent, to ask ahead of need  Add; read by Over
//
// Package lease sets and reads the other fields itself.
package leased

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var le = binary.LittleEndian

const (
	// MaxGrants is how many grants a lease holds units of. Each goes back only on the stream that got it, and each
	// worker has its own stream. What has no place here goes back at once.
	MaxGrants = 4
	// StrandedNs is how long after a grant's end its worker has returned the rest at
	// the latest, unless its stream has ended.
	StrandedNs = 2_000_000_000
)

// Lease is what this proxy has leased of one key. The zero value has nothing.
type Lease struct {
	Grants [MaxGrants]GrantUnits

	denial     Denial    // the last one
	deniedCost uint32    // the smallest that it denies, or eachCost
	Uncharged  Uncharged // what this proxy has admitted without the service
	Rate       Rate

	RefillUntilNs int64      // until when an ask for units ahead of need may be under way
	SilentUntilNs int64      // until when the service cannot reach the key
	Standings     []Standing // as the service last said; fewer than the rule has windows, if it has not said all
}

// GrantID says which grant of the service. Grants of a broken service may have no numbers, so a grant's end is part of
// it: units of another end never join these.
type GrantID struct {
	Stream uint32 // on which the grant came
	Number uint32 // of the grant on its stream
	EndNs  int64  // units may be spent before it
}

// GrantUnits is what is left of a grant.
type GrantUnits struct {
	GrantID
	Units uint32
}

// Left returns how many units may be spent.
func (l *Lease) Left(nowNs int64) (units uint32) {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.EndNs > nowNs {
			units = limit.AddSaturating(units, g.Units)
		}
	}
	return units
}

// EndNs is the latest end of units that may be spent, 0 if there are none.
func (l *Lease) EndNs(nowNs int64) (endNs int64) {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Units > 0 && g.EndNs > nowNs {
			endNs = max(endNs, g.EndNs)
		}
	}
	return endNs
}

// Taken are units of each grant, as Spend has taken them. Put puts them back.
type Taken [MaxGrants]GrantUnits

// Spend spends units, first those of the grant that ends first. At least so many must be left.
func (l *Lease) Spend(nowNs int64, units uint32) (taken Taken) {
	for i := 0; units > 0; i++ {
		first := l.endsFirst(nowNs)
		n := min(units, first.Units)
		taken[i] = GrantUnits{first.GrantID, n}
		first.Units -= n
		units -= n
	}
	return taken
}

// endsFirst returns the grant with units that ends first.
func (l *Lease) endsFirst(nowNs int64) (first *GrantUnits) {
	for i := range l.Grants {
		g := &l.Grants[i]
		if g.Units > 0 && g.EndNs > nowNs && (first == nil || g.EndNs < first.EndNs) {
			first = g
		}
	}
	return first
}

// Put adds units of a grant to what is left of it, or else takes a free place for them. If there is
// none, it takes the place of a stranded grant: its end is long over, so its stream must have ended
// too, or its worker would have returned the rest. stranded is how many units that had: they are lost. It is not ok if
// there is no place.
func (l *Lease) Put(nowNs int64, added GrantUnits) (stranded uint32, ok bool) {
	var room *GrantUnits // the first free place, else that of the first stranded grant
	for i := range l.Grants {
		g := &l.Grants[i]
		switch {
		case g.GrantID == added.GrantID:
			g.Units = limit.AddSaturating(g.Units, added.Units)
			return 0, true
		case g.Units == 0 && (room == nil || room.Units > 0): // a free place is better than a stranded grant's
			room = g
		case g.EndNs+StrandedNs < nowNs && room == nil:
			room = g
		}
	}
	if room == nil {
		return 0, false
	}
	stranded = room.Units
	*room = added
	return stranded, true
}

// LeftOf returns how many units are left of a grant.
func (l *Lease) LeftOf(grant GrantID) (units uint32) {
	if g := l.find(grant); g != nil {
		return g.Units
	}
	return 0
}

// TakeOut takes what is left of a grant out of the lease.
func (l *Lease) TakeOut(grant GrantID) {
	if g := l.find(grant); g != nil {
		g.Units = 0
	}
}

// find returns the place of a grant, nil if it has none.
func (l *Lease) find(grant GrantID) *GrantUnits {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.GrantID == grant {
			return g
		}
	}
	return nil
}

// Denial is what the service has said of hits that it denies.
type Denial struct {
	UntilNs int64 // until when others are denied like them, without being asked for
	PassNs  int64 // when a denied hit passes, as the service knew it, or limit.Never
}

// WaitNs is how long a denied hit must wait, or limit.Never.
func (d *Denial) WaitNs(nowNs int64) int64 {
	if d.PassNs == limit.Never {
		return limit.Never
	}
	return max(d.PassNs-nowNs, 0)
}

// eachCost is Lease.deniedCost of a key that is blocked.
const eachCost = 0

// Deny has the lease deny requests that cost so much or more, but never those that cost 0.
func (l *Lease) Deny(cost uint32, d Denial) {
	l.denial, l.deniedCost = d, max(cost, eachCost+1)
}

// Block has the lease deny all requests.
func (l *Lease) Block(d Denial) {
	l.denial, l.deniedCost = d, eachCost
}

// Allow forgets a denial of a cost that can be spent now, because the key has got so many units. It ends no block.
func (l *Lease) Allow(units uint32) {
	if l.deniedCost > eachCost && l.deniedCost <= units {
		l.denial.UntilNs = 0
	}
}

// Denies reports whether the last denial still holds for so many units.
func (l *Lease) Denies(units uint32, nowNs int64) bool {
	return l.denial.UntilNs > nowNs && units >= l.deniedCost
}

// Blocks reports whether the last denial still holds, and is of a blocked key.
func (l *Lease) Blocks(nowNs int64) bool { return l.Denies(eachCost, nowNs) }

// WaitNs is how long a hit that the last denial denies must wait, or limit.Never.
func (l *Lease) WaitNs(nowNs int64) int64 { return l.denial.WaitNs(nowNs) }

// Uncharged are units that this proxy has admitted without the service, and that the service has not charged yet. One
// ask of the key at a time tells them to the service, so that they are charged once, but for what the filter's
// lease/silence.go lists, which draws their life.
type Uncharged struct {
	Units       uint32
	toldUntilNs int64 // until when an ask may be under way that tells them
}

// Telling is what an ask has told: how many units. The zero value is nothing.
type Telling struct {
	Units   uint32
	untilNs int64 // says which one it is: of two that have not ended, the second begins when the first one's time is over
}

// Add adds units that were admitted.
func (u *Uncharged) Add(units uint32) { u.Units = limit.AddSaturating(u.Units, units) }

// Remove undoes Add. It is not ok, and removes nothing, if the service has charged the units since.
func (u *Uncharged) Remove(units uint32) (ok bool) {
	if u.Units < units {
		return false
	}
	u.Units -= units
	return true
}

// Tell notes that an ask tells all units from now on: until EndTelling, or until untilNs at the latest. It tells none
// if another ask does. before is what the same ask has told already, if it is sent again: that does not keep it from
// telling.
func (u *Uncharged) Tell(before Telling, nowNs, untilNs int64) Telling {
	byAnother := u.toldUntilNs > nowNs && u.toldUntilNs != before.untilNs
	if u.Units == 0 || byAnother {
		return Telling{}
	}
	u.toldUntilNs = untilNs
	return Telling{u.Units, untilNs}
}

// EndTelling notes the result of an ask that has told units, and whether the service has charged them. If another ask
// tells them by now, because this one took too long, the other one's telling goes on.
func (u *Uncharged) EndTelling(told Telling, charged bool) {
	if told.Units == 0 {
		return
	}
	if u.toldUntilNs == told.untilNs {
		u.toldUntilNs = 0
	}
	if charged {
		u.Units -= min(u.Units, told.Units)
	}
}

// Standing is how one window stands over all proxies, as the service last said.
type Standing struct {
	Used    uint32
	ResetNs int64 // monotonic
}

// Rate is how many units were spent in the period that began at FromNs, and in the
// one before it.
type Rate struct {
	FromNs        int64
	Units, Before uint32
}

// Over estimates how many units were spent in the last period: all of the current one's,
// and of the one before the part that is less than a period ago. For example, 300 units were spent
// in one period, and 50 in the first third of the next: 50 and two thirds of 300 are 250.
func (r *Rate) Over(nowNs, periodNs int64) uint32 {
	switch passed := max(nowNs-r.FromNs, 0); { // another worker may have added units later
	case passed < periodNs:
		return limit.AddSaturating(r.Units, part(r.Before, periodNs-passed, periodNs))
	case passed < 2*periodNs:
		return part(r.Units, 2*periodNs-passed, periodNs)
	}
	return 0
}

// part is the part of a number of units that falls into part of a period. Their product may have more than 64 bits.
func part(units uint32, partNs, periodNs int64) uint32 {
	return uint32(float64(units) * float64(partNs) / float64(periodNs))
}

// Add adds units that were spent to the rate.
func (r *Rate) Add(nowNs, periodNs int64, units uint32) {
	switch passed := nowNs - r.FromNs; {
	case passed < periodNs:
	case passed < 2*periodNs:
		*r = Rate{FromNs: r.FromNs + periodNs, Before: r.Units}
	default:
		*r = Rate{FromNs: nowNs}
	}
	r.Units = limit.AddSaturating(r.Units, units)
}

// WouldBeMissed reports whether the lease has units that may be spent or returned, has units that
// the service has not charged yet, or says how long not to ask it.
func (l *Lease) WouldBeMissed(nowNs int64) bool {
	if l.Uncharged.Units > 0 || max(l.denial.UntilNs, l.RefillUntilNs, l.SilentUntilNs) > nowNs {
		return true
	}
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Units > 0 && g.EndNs+StrandedNs >= nowNs {
			return true
		}
	}
	return false
}

// The bytes of a lease in its record, little endian; instants are the proxy's monotonic clock:
//
//	  0  u64  identity: which key and windows the lease is of, as package state hashes them
//	  8       4 × grant: u32 stream, u32 number, u32 units left, i64 end
//	 88  i64  until when a denial holds
//	 96  i64  when a denied hit passes, as the service knew it; -1 = never
//	104  u32  smallest cost denied; 0 = the key is blocked
//	108  i64  until when an ask for units ahead of need may be under way
//	116  i64  until when the service cannot reach the key
//	124  u32  units admitted without the service, not charged by it yet
//	128  i64  until when an ask may be under way that tells them
//	136  i64  start of the period of the rate
//	144  u32  units spent in this period
//	148  u32  and in the one before
//	152       n × standing: u32 used, i64 reset
const (
	grantBytes    = 3*4 + 8
	offGrants     = 8
	offDenied     = offGrants + MaxGrants*grantBytes
	offPass       = offDenied + 8
	offDeniedCost = offPass + 8
	offRefill     = offDeniedCost + 4
	offSilent     = offRefill + 8
	offUncharged  = offSilent + 8
	offTold       = offUncharged + 4
	offRate       = offTold + 8
	offStandings  = offRate + 8 + 2*4
	standingBytes = 4 + 8

	// HeadBytes is the size of a lease without its standings. Decode reads these alone, too.
	HeadBytes = offStandings
)

// Bytes is the size of a lease of a key with that many windows.
func Bytes(windows int) int { return HeadBytes + windows*standingBytes }

// Identity is that in the bytes of a lease.
func Identity(b []byte) uint64 { return le.Uint64(b) }

// Decode reads the lease from its bytes.
func (l *Lease) Decode(b []byte) {
	for i := range l.Grants {
		l.Grants[i].decode(b[offGrants+i*grantBytes:])
	}
	l.denial.UntilNs = int64(le.Uint64(b[offDenied:]))
	l.denial.PassNs = int64(le.Uint64(b[offPass:]))
	l.deniedCost = le.Uint32(b[offDeniedCost:])
	l.RefillUntilNs = int64(le.Uint64(b[offRefill:]))
	l.SilentUntilNs = int64(le.Uint64(b[offSilent:]))
	l.Uncharged.Units = le.Uint32(b[offUncharged:])
	l.Uncharged.toldUntilNs = int64(le.Uint64(b[offTold:]))
	l.Rate.decode(b[offRate:])
	l.Standings = l.Standings[:0]
	for b = b[offStandings:]; len(b) >= standingBytes; b = b[standingBytes:] {
		st := Standing{le.Uint32(b), int64(le.Uint64(b[4:]))}
		if st.ResetNs == 0 {
			break // the service has not told it: one that it tells resets after it has come
		}
		l.Standings = append(l.Standings, st)
	}
}

// Encode writes the lease, which is of that identity. Windows without a standing get an empty one, which Decode leaves
// out.
func (l *Lease) Encode(b []byte, identity uint64) {
	le.PutUint64(b, identity)
	for i := range l.Grants {
		l.Grants[i].encode(b[offGrants+i*grantBytes:])
	}
	le.PutUint64(b[offDenied:], uint64(l.denial.UntilNs))
	le.PutUint64(b[offPass:], uint64(l.denial.PassNs))
	le.PutUint32(b[offDeniedCost:], l.deniedCost)
	le.PutUint64(b[offRefill:], uint64(l.RefillUntilNs))
	le.PutUint64(b[offSilent:], uint64(l.SilentUntilNs))
	le.PutUint32(b[offUncharged:], l.Uncharged.Units)
	le.PutUint64(b[offTold:], uint64(l.Uncharged.toldUntilNs))
	l.Rate.encode(b[offRate:])
	b = b[offStandings:]
	for i := 0; len(b) >= standingBytes; i++ {
		var s Standing
		if i < len(l.Standings) {
			s = l.Standings[i]
		}
		le.PutUint32(b, s.Used)
		le.PutUint64(b[4:], uint64(s.ResetNs))
		b = b[standingBytes:]
	}
}

func (g *GrantUnits) decode(b []byte) {
	*g = GrantUnits{
		GrantID: GrantID{Stream: le.Uint32(b), Number: le.Uint32(b[4:]), EndNs: int64(le.Uint64(b[12:]))},
		Units:   le.Uint32(b[8:]),
	}
}

func (g *GrantUnits) encode(b []byte) {
	le.PutUint32(b, g.Stream)
	le.PutUint32(b[4:], g.Number)
	le.PutUint32(b[8:], g.Units)
	le.PutUint64(b[12:], uint64(g.EndNs))
}

func (r *Rate) decode(b []byte) {
	*r = Rate{FromNs: int64(le.Uint64(b)), Units: le.Uint32(b[8:]), Before: le.Uint32(b[12:])}
}

func (r *Rate) encode(b []byte) {
	le.PutUint64(b, uint64(r.FromNs))
	le.PutUint32(b[8:], r.Units)
	le.PutUint32(b[12:], r.Before)
}
