// Package lease has the sources of units of rules of scope cluster, whose limits count over all proxies. A Source keeps
// units that the quota service has granted in a table of leases, so that most requests ask nobody. A HoldSource asks
// for each request, because its units are held until the answer is known.
//
// Its invariant: a unit is spent once, and before its lease ends by the monotonic clock.
//
// A worker is one thread of the proxy with a VM of its own, so nothing here is locked. All that the workers of a proxy
// share is in the tables of package state: a write of a lease returns state.Mismatch if another worker has written it
// meanwhile, and is tried again on what is there by now, up to state.MaxRetries times.
//
// Who calls whom. No package calls upwards or to the right: it leaves what it has to say where the caller looks.
//
//	decide, hold                                     host
//	  |  Check, Take, Refund; Settle, Renew            |  Wait, Flush, Receive, Next, Done, Tick
//	  v                                                v
//	Source, HoldSource  <------------------------  talk.Client  <--- messages --->  quota service
//	  |            |             BeginAsk,             |
//	  |  Read,     |  Open,      HandOut,              |  Due, Reporter
//	  |  Write     |  Hold, ...  Need.Reclaim          |
//	  v            v                                   v
//	table of    account.Book, and its Accounts  <------+
//	leases
//
//	what          is left in                by                         for
//	a request     its decide.Subject        HandOut                    Source.Check and Take, in the next Decide
//	a refill      Worker.refills            Source.Take                Client.Flush
//	a report      the list of Book          Account.List               Client.Flush
//	a return      Worker.Returns            HandOut, Reclaim and       Client.Flush
//	                                        CollectIdle, by giveBack
//	silence       Worker.Service            Client.Tick                Source.Check
//
// A request whose units are there: Source.Check finds them in the key's lease, and Source.Take takes
// them. A request whose units are not there, for example of a key of 1000 a minute, of which 300 were
// taken in the last 3 seconds:
//
//	Source.Check     The lease of the key has ended with the minute. The outcome is Pending.
//	Client.Wait      BeginAsk finds that the request needs 1 unit. An ask is queued for 1, and 600 ahead of need.
//	Client.Flush     A message leaves with all asks that are queued.
//	Client.Receive   The service grants the 1. Of the 600 it grants no more than a quarter of what is left: 249 of
//	                 999. Of these 250 units HandOut gives 1 to the request's Subject, and puts 249 into the lease.
//	Source.Check     The request is decided again. The Subject's allotment has 1 unit. The outcome is HasRoom.
//	Source.Take      The Subject's allotment has 0 units, which are taken.
//	Client.Done      Nothing is left of the allotment, so nothing goes back.
//
// A request of a rule that holds always goes the second way. Instead of the lease, the key's account is changed, and
// the next report says by that what the worker holds and what it does not.
//
// To read it, follow such a request:
//
//	source.go       Source       checks and takes units of leases, or of this proxy's share while the service is silent
//	ask.go          Part, Need   what is asked for, who needs it, and how limits are defined to the service
//	handout.go      HandOut      what the service grants: requests that have waited get it, and a keeper the rest. What
//	                             it denies is told and remembered
//	keeper.go       keeper       what no request takes: it joins the key's lease, or goes back
//	returns.go      Returns      what goes back, at once or when it is idle
//	holds.go        HoldSource   checks and holds, and how a hold ends and is charged once
//	clusterrule.go  clusterRule  what both sources do, such as to decide while the service is silent
//	worker.go       Worker       what the sources of a worker share with the talk
//	show.go         Look         what operators see, and what clients are told that ask for their usage
//
// Leases end by the monotonic clock: every instant is of it, unless it is called wallNs or is one of package decide's.
package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Source is the source of units of a rule of scope cluster: units that this proxy has
// leased from the quota service, in a table from which all its workers take.
//
// Check goes down this list to the first line that applies:
//
//	line                                               outcome                                   by
//	the request has waited, and its allotment decides  HasRoom from Allotted, Denied or Blocked  byAllotment
//	the proxy's store fails                            Failed                                    readLease
//	the key's lease says that the key is blocked       Blocked
//	cost 0, and the rule has no block                  Denied by a limit of 0, or HasRoom        forNothing
//	the key's lease has enough units                   HasRoom from LeaseTable
//	the key's lease has a denial that is not over      Denied
//	the service is silent                              what OwnShare decides, or Silent          alone
//	the request has waited, and no answer came         what OwnShare decides, or Silent          askService
//	too many requests wait, or the service took no     Contended                                 askService
//	more asks
//	none of these: the service may have units          Pending: the request waits                askService
//
// Where Check has found the units is in Subject.Quota.From. Take and Refund follow it:
//
//	From        Take                                      Refund
//	Allotted    takes from the subject's allotment        puts back there
//	LeaseTable  takes from the key's lease, and may       reads the lease anew, and puts back
//	            ask for more ahead of need                there
//	OwnShare    notes in the lease what the service must  puts back into the share; the service
//	            charge later, and takes from the share    charges it all the same
//	Nowhere     never called: a cost of 0 takes nothing   never called
type Source struct {
	clusterRule
	table *state.Leases

	keeps  bool // units may be kept for later requests: not with "lease: off"
	refill refill
	idleNs int64 // after which units that nobody takes go back

	key []byte // memory for tableKey
}

// Check finds out what decides about the request: see Source.
func (src *Source) Check(s *decide.Subject, wallNs int64) decide.Finding {
	found := src.check(s, wallNs)
	found.Known = isKnown(s)
	return found
}

func (src *Source) check(s *decide.Subject, wallNs int64) decide.Finding {
	c := src.begin(s, wallNs)
	if c.Allotment.Decides(s.Cost, s.Quota.MonotonicNs) {
		return byAllotment(s, &c.Allotment)
	}
	if !src.readLease(s, c) {
		return decide.Finding{Found: decide.Failed}
	}
	e, now := c.Lease, s.Quota.MonotonicNs
	switch {
	case e.Blocks(now):
		return deniedFor(s, e.WaitNs(now), decide.Blocked)
	case src.asksNothing(s):
		return forNothing(s)
	case src.keeps && e.Left(now) >= s.Units: // more than Cost, if other rules of the request take of the lease before
		s.Quota.From = decide.LeaseTable
		return decide.Finding{Found: decide.HasRoom}
	case src.keeps && e.Denies(s.Units, now):
		return deniedFor(s, e.WaitNs(now), decide.Denied)
	case src.isSilent(e):
		return src.alone(s, decide.Silent)
	default:
		return src.askService(s)
	}
}

// Recheck is Check.
func (src *Source) Recheck(s *decide.Subject, wallNs int64) decide.Finding {
	return src.Check(s, wallNs)
}

// readLease reads the key's lease, and what the service has said last of the key. It returns false if the proxy's store
// fails.
func (src *Source) readLease(s *decide.Subject, c *allot.Carried) (ok bool) {
	q, wallNs := &s.Quota, s.Record.Now
	if c.LeaseMemory == nil {
		c.LeaseMemory = new(state.LeaseEntry)
	}
	e := c.LeaseMemory
	read := src.table.Read(e, src.tableKey(s), wallNs, q.MonotonicNs)
	if src.rereadIfFromFuture(e, read, wallNs) != state.OK {
		return false
	}
	c.Lease = e
	q.MonotonicNs = e.NowNs // a reread has a later instant: the check goes on by it
	q.Standings = e.Standings
	return true
}

// rereadIfFromFuture reads the clock and a lease once more, if the lease was written long after the clock was read: the
// worker may have stood still in between. If the lease still is FromFuture, the clock has begun anew since, and the
// lease counts as none. It returns the status of the last read.
func (src *Source) rereadIfFromFuture(e *state.LeaseEntry, read state.Status, wallNs int64) state.Status {
	if read == state.OK && e.FromFuture {
		read = src.table.Reread(e, wallNs, src.worker.clock.Monotonic())
	}
	return read
}

// isSilent reports whether the service answers nothing, or nothing about this key.
func (src *Source) isSilent(e *state.LeaseEntry) bool {
	return e.SilentUntilNs > e.NowNs || src.worker.Service.Silent
}

// tableKey is what the subject's lease is found by: its key and, if requests give limits, these.
// So units that were granted under one limit are not spent under another, and no
// denial is remembered under another.
func (src *Source) tableKey(s *decide.Subject) []byte {
	if !src.rule.Finder.IsRequested(&s.Subject) {
		return s.Key.Bytes
	}
	src.key = appendLimits(append(src.key[:0], s.Key.Bytes...), s)
	return src.key
}

// beginAsk begins an ask for the cost. It may write the key's lease, which Check has read: see claimUncharged.
func (src *Source) beginAsk(s *decide.Subject) Part {
	return src.newPart(s, s.Cost, src.claimUncharged(s.Carried.Lease))
}

// newPart asks for a cost of the subject's key, and says how many units of it were spent in silence.
func (src *Source) newPart(s *decide.Subject, cost, spent uint32) Part {
	e, d := s.Carried.Lease, src.definition(s)
	p := Part{Definition: d, lease: leaseAt{src, e.Key()}, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Cost: cost, Waiting: cost,
		Spent: spent, Shadow: s.Shadow, NoBlock: s.MustNotBlock(),
	}}
	if src.keeps {
		p.Wire.Ahead = src.refill.ahead(e)
	}
	return p
}

// Take takes the cost from where Check has found it.
func (src *Source) Take(s *decide.Subject) state.Status {
	switch s.Quota.From {
	case decide.Allotted:
		s.Carried.Allotment.Units -= s.Cost
		return state.OK
	case decide.LeaseTable:
		return src.takeLease(s)
	case decide.OwnShare:
		return src.takeShare(s)
	default:
		return state.Failed
	}
}

// takeLease takes units that the proxy has leased. If few are left, it asks ahead: a refill, which also says how many
// units are Uncharged. Until the answer or the timeout no worker of this proxy asks ahead again, because the lease says
// so. While nothing is Uncharged, the answer to any ask of the key ends that: each asks ahead, so the lease has more
// units then.
func (src *Source) takeLease(s *decide.Subject) state.Status {
	c, w := &s.Carried, src.worker
	e := c.Lease
	c.Taken = e.Spend(e.NowNs, s.Cost)
	e.Rate.Add(e.NowNs, src.refill.rateNs, s.Cost)
	if e.Uncharged.IsAsked(e.NowNs) || w.Service.Silent || !src.refill.isDue(e) {
		return src.write(e)
	}
	spent := e.Uncharged.Ask(e.NowNs + w.Service.TimeoutNs)
	taken := src.write(e)
	if taken == state.OK {
		w.refills = append(w.refills, src.newPart(s, 0, spent))
	}
	return taken
}

// While the service is silent, this proxy admits requests by its share of the limits. What these cost is Uncharged in
// the key's lease until the service has charged it. For example, with a timeout of 100 ms:
//
//	time     what happens                                           Uncharged            by
//	0 ms     A request asks. No answer comes.                       0
//	100 ms   Its time is over. It is admitted alone.                1 unit               takeShare
//	500 ms   The service is silent, so 4 more are admitted alone.   5 units              takeShare
//	1200 ms  The service answers again. A request asks, and its     5 units,             claimUncharged
//	         ask says Spent: 5.                                     asked until 1300 ms
//	1205 ms  A request of another worker asks. Its ask says         the same             claimUncharged
//	         Spent: 0.
//	1210 ms  The first of both asks is answered: the service has    0                    writeAnswer
//	         charged 5 units.
//
// The mark "asked until" is one for asks of requests that say Spent, and for refills, also if nothing is Uncharged:
//
//	an ask of a request  sets it if it says Spent. It leaves whatever the mark says, with Spent: 0 if it is set
//	a refill             sets it always, and says Spent. It does not leave if the mark is set: see takeLease
//
// So if the lease has units at 1200 ms, and no request asks, the next refill says Spent.
//
// What may go wrong with the ask that says Spent:
//
//	It is not answered by 1300 ms, or it has joined another   The next ask says Spent: 5 again. If the service has
//	ask, which has its own Spent (ask.add).                   heard the first one, it charges 5 units twice.
//	The answer has Failed: the service cannot reach the key.  The units stay Uncharged. A later ask says them.
//	The record is lost. For a new one in a full page, state   The service never hears of the units.
//	takes a record with units Uncharged last.

// takeShare takes the cost of the proxy's share. First it writes into the lease that the service has to charge it: what
// the service never hears of would be admitted twice. It writes that once for a request, which may take of the share
// again: see allot.Carried. If another worker has put units into the lease by then, the request takes of these,
// and the service charges its cost twice: a limit is never looser by that.
func (src *Source) takeShare(s *decide.Subject) state.Status {
	if c := &s.Carried; !c.HasNotedUncharged {
		c.Lease.Uncharged.Add(s.Cost)
		if written := src.write(c.Lease); written != state.OK {
			return written
		}
		c.HasNotedUncharged = true
	}
	return src.local.Take(s)
}

// claimUncharged returns the units that the ask of a request has to say as Spent. If another worker has written the
// lease meanwhile, it returns none: a later ask says them. Another ask may be granted units before the service hears of
// these.
func (src *Source) claimUncharged(e *state.LeaseEntry) (spent uint32) {
	u := &e.Uncharged
	if u.Units == 0 || u.IsAsked(e.NowNs) {
		return 0
	}
	spent = u.Ask(e.NowNs + src.worker.Service.TimeoutNs)
	if src.write(e) != state.OK { // then e has a mark that the lease has not, and the next check reads it anew
		return 0
	}
	return spent
}

// write writes a lease, and counts what the record held that it may replace.
func (src *Source) write(e *state.LeaseEntry) state.Status {
	written := src.table.Write(e)
	if written == state.OK {
		src.noteLost(e.Replaced)
	}
	return written
}

// Refund puts the units back to where they were taken from.
func (src *Source) Refund(s *decide.Subject, wallNs int64) bool {
	switch s.Quota.From {
	case decide.Allotted:
		s.Carried.Allotment.Units += s.Cost
		return true
	case decide.LeaseTable:
		return src.refundLease(s, wallNs)
	case decide.OwnShare:
		return src.local.Refund(s, wallNs)
	default:
		return false
	}
}

// refundLease puts units back into the lease, as of the instant at which they were taken. If it fails, they stay
// counted.
func (src *Source) refundLease(s *decide.Subject, wallNs int64) bool {
	at := leaseAt{src, s.Carried.Lease.Key()}
	for c := at.change(wallNs, s.Carried.Lease.NowNs); c.read(); {
		if c.WrittenNs == 0 || !c.Put(s.Carried.Taken) {
			return false
		}
		if c.write() {
			return true
		}
	}
	return false
}

// refill says when a key's next units are asked for ahead of need, and how many. It looks as far
// ahead as quota.HorizonNs says, and measures how fast units are taken over half of that. So the
// rate follows a change of traffic within the time for which units are asked.
//
// For example, a limit of 1000 a minute has a horizon of 6 s. A key of which 300 units were taken in
// the last 3 s needs 600 within 6 s, so that many are asked for. They are asked for when what is
// left lasts less than 100 ms: when fewer than 10 units are left.
type refill struct {
	rateNs int64 // over which the rate is measured: half of the horizon
	leadNs int64 // how long what is left must last
}

// maxLeadNs is the timeout by default: by then the service has answered, or it is silent.
const maxLeadNs = 100_000_000

func refillOf(windows []limit.Window) refill {
	half := quota.HorizonNs(windows) / 2
	return refill{rateNs: max(half, 1), leadNs: min(half, maxLeadNs)}
}

// rate is how many units of the key were taken in the last rateNs.
func (r *refill) rate(e *state.LeaseEntry) uint32 { return e.Rate.Over(e.NowNs, r.rateNs) }

// ahead is how many units the key needs within the horizon, which is twice rateNs.
func (r *refill) ahead(e *state.LeaseEntry) uint32 {
	rate := r.rate(e)
	return limit.AddSaturating(rate, rate)
}

// isDue reports whether what is left lasts less than leadNs.
func (r *refill) isDue(e *state.LeaseEntry) bool {
	return uint64(e.Left(e.NowNs))*uint64(r.rateNs) < uint64(r.rate(e))*uint64(r.leadNs)
}
