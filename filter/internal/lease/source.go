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
//	a report      the list of Book          Account.list               Client.Flush
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
// To read it, begin with what all of it uses, and then follow such a request:
//
//	worker.go       Worker       what the sources of a worker share with the talk
//	clusterrule.go  clusterRule  what both sources do, such as to decide while the service is silent
//	source.go       Source       checks and takes units of leases, or of this proxy's share while the service is silent
//	leases.go       leaseAt      reads and writes leases
//	ask.go          Part, Need   what is asked for, and who needs it
//	definitions.go  definitions  how limits are defined to the service
//	handout.go      HandOut      what the service grants, or denies: requests that have waited get it
//	keeper.go       keeper       what they do not get: the key's lease or account keeps it
//	returns.go      Returns      what goes back, at once or when it is idle
//	uncharged.go                 what an ask says of units that were spent in silence
//	refill.go       refill       what is asked ahead of need
//	holds.go        HoldSource   checks and holds, and how a hold ends and is charged once
//	look.go         Look         what clients are told that ask for their usage
//	operate.go                   what operators are told
//
// Leases end by the monotonic clock: every instant is of it, unless it is called wallNs or is one of package decide's.
package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
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

// isSilent reports whether the service answers nothing, or nothing about this key.
func (src *Source) isSilent(e *state.LeaseEntry) bool {
	return e.SilentUntilNs > e.NowNs || src.worker.Service.Silent
}

// beginAsk begins an ask for the cost. It may write the key's lease, which Check has read: see claimUncharged.
func (src *Source) beginAsk(s *decide.Subject) Part {
	return src.leasePart(s, s.Cost, src.claimUncharged(s.Carried.Lease))
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

// takeLease takes units that the proxy has leased. If few are left, it asks ahead, by a refill.
func (src *Source) takeLease(s *decide.Subject) state.Status {
	c, w := &s.Carried, src.worker
	e := c.Lease
	c.Taken = e.Spend(e.NowNs, s.Cost)
	e.Rate.Add(e.NowNs, src.refill.rateNs, s.Cost)
	spent, refills := src.beginRefill(e)
	taken := src.write(e)
	if refills && taken == state.OK {
		w.refills = append(w.refills, src.leasePart(s, 0, spent))
	}
	return taken
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
	written := at.change(wallNs, s.Carried.Lease.NowNs, func(e *state.LeaseEntry) bool {
		return e.WrittenNs != 0 && e.Put(s.Carried.Taken)
	})
	return written != nil
}

// Tables are the table of leases, and what counts in the place of a silent service: keys
// that are among the leases.
func (src *Source) Tables() []decide.Table {
	t := src.table.Table()
	own := decide.Table{Table: t, OfRule: t.Windows(), Scratch: &src.worker.scratch}
	return append([]decide.Table{own}, src.clusterRule.Tables()...)
}
