// Package lease has the sources of units of rules of scope cluster, whose limits count over all proxies. A LeaseSource
// keeps units that the quota service has granted in leases, so that most requests ask nobody. A HoldSource asks for
// each request, because its units are held until the answer is known.
//
// Its invariant: a unit is spent once, and before its lease ends by the monotonic clock.
//
// A worker is one thread of the proxy with a VM of its own, so nothing here is locked. All that the workers of a proxy
// share is in the tables of package state: a write of a lease returns state.Mismatch if another worker has written it
// meanwhile, and is tried again on what is there by now, up to state.MaxRetries times.
//
// Who calls whom. Each leaves what it has to say where the other one looks:
//
//	decide, hold                                      host
//	  |  Check, Take, Refund; Settle, Renew             |  Wait, Flush, Receive, Next, Done, Tick
//	  v                                                 v
//	LeaseSource, HoldSource  <--------------------  talk.Client  <--- messages --->  quota service
//	  |               |       BeginAsk, Part.Tell,    |     |
//	  |  Read,        |       HandOut,                |     |  AppendTo
//	  |  Write,       |       GiveBackUnused          |     v
//	  |  Change       |  Open, Hold, BeginReport,     |   grants.Returns
//	  v               v  EndReport, ...               |
//	grants.Leases   account.Book, and its Accounts  <-+
//	                                          Due, ReportAll, Claim, GiveUp, ...
//
//	what          is left in                by                         for
//	a request     Subject.Cluster           HandOut                    the source, in the next Decide
//	a refill      Worker.refills            LeaseSource.Take           Client.Flush
//	a report      the list of Book          Account.Enlist             Client.Flush
//	a return      Worker.Returns            HandOut, GiveBackUnused    Client.Flush
//	                                        and CollectIdle
//	silence       Worker.Service            Client, at a Tick, or by   the source
//	                                        what it receives
//
// A request whose units are there: LeaseSource.Check finds them in the key's lease, and Take takes them. A request
// whose units are not there, for example of a key of 1000 a minute, of which 300 were taken in the last 3 seconds:
//
//	Check            The lease of the key has ended with the minute. The outcome is Pending.
//	Client.Wait      BeginAsk finds that the request needs 1 unit. An ask is queued for 1, and 600 ahead of need.
//	Client.Flush     A message leaves with all asks that are queued.
//	Client.Receive   The service grants the 1. Of the 600 it grants no more than a quarter of what is left: 249 of
//	                 999. Of these 250 units HandOut gives 1 to the request's Subject, and puts 249 into the lease.
//	Check            The request is decided again. The Subject's allotment has 1 unit. The outcome is HasRoom.
//	Take             It takes the 1 unit of the Subject's allotment.
//	Client.Done      GiveBackUnused finds that nothing is left of the allotment, so nothing goes back.
//
// A request of a rule that holds always goes the second way. Instead of the lease, the key's account is changed, and
// the next report says by that what the worker holds and what it does not.
//
// To read it, begin with the packages cluster and shared/state/leased. Then follow such a request:
//
//	worker.go       Worker       what the sources of a worker share with the talk
//	clusterrule.go  clusterRule  what both sources do, such as to decide while the service is silent
//	leasesource.go  LeaseSource  checks and takes units of a grants.Leases
//	silence.go                   takes units of this proxy's share, and tells the service of them later
//	refill.go       refill       when units are asked for ahead of need, and how many
//	holdsource.go   HoldSource   checks and holds, and how a hold ends and is charged once. Read package account first
//	ask.go          Part         what the service is asked of one key, or told of it, and which requests wait
//	definitions.go  definitions  how limits are defined to the service
//	answer.go       answer       what the service has said, and what a worker remembers of a denial
//	handout.go      HandOut      who gets what the service grants, or denies
//	look.go         Look         what clients are told that ask for their usage
//	grants          Leases       leases in their table, and what goes back to the service
//	talk            Client       which requests wait for which asks, and the messages
//
// Leases end by the monotonic clock: every instant is of it, unless it is called wallNs or is one of package decide's.
package lease

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/grants"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Clock is the proxy's two clocks.
type Clock interface {
	// Now returns nanoseconds since the Unix epoch.
	Now() int64
	// Monotonic returns nanoseconds of a clock that no one sets, from any instant on.
	Monotonic() int64
}

// Worker is what the rules of scope cluster of one worker have in common. Its sources decide by it, and leave in it
// what the service is to be asked and told; package talk does that, and says how the service is.
type Worker struct {
	definitions definitions
	clock       Clock
	tables      *state.Tables
	domain      string

	// Between the sources and package talk:
	Service Service        // how the service is
	Book    *account.Book  // what is held
	Returns grants.Returns // what goes back
	refills []Part         // what requests to come will soon need: DrainRefills

	scratch state.Scratch // memory
}

// Service is how the quota service is. The talk writes what it finds out, and sources decide by it. A worker without a
// talk of its own has AssumeSilent or DecideLike.
type Service struct {
	TimeoutNs int64 // how long a request waits
	Silent    bool  // nothing has come for the timeout: nobody waits
	Crowded   bool  // so many requests wait that no other may
}

// NewWorker returns a worker without rules.
func NewWorker(clock Clock, tables *state.Tables, domain string) *Worker {
	return &Worker{
		clock: clock, tables: tables, domain: domain, Book: account.NewBook(),
		definitions: definitions{requested: map[requestedKey]*quota.Definition{}},
	}
}

// AddRule gives a rule its source of units. fallback is the table that counts in the place of a
// silent service, if on_unavailable is local.
func (w *Worker) AddRule(r *decide.Rule, fallback *state.Table) {
	p, windows := r.Policy, r.Finder.Windows
	ofCluster := clusterRule{worker: w, rule: r, blocks: p.Block != nil}
	ofCluster.firstDefinition = w.definitions.addRule(r)
	if p.OnUnavailable == policy.UnavailableLocal {
		ofCluster.local = local.New(r, fallback, &w.scratch)
	}
	if p.Holds() {
		r.SetSource(&HoldSource{clusterRule: ofCluster}, fallback)
		return
	}
	table := w.tables.LeaseTable(r.Finder.Counter("\x00lease", p.Capacity), windowsHash(windows), len(windows), p.Capacity)
	r.SetSource(&LeaseSource{
		clusterRule: ofCluster,
		leases:      grants.New(table, &w.Returns, quota.IdleNs(windows), &r.Metrics.LeasedUnitsLost),
		keeps:       p.Lease != quota.LeaseOff, refill: refillOf(windows),
	}, table.Table())
}

// windowsHash is a hash of what makes windows the same: of their limit.Window.Identity.
func windowsHash(windows []limit.Window) uint64 {
	var b []byte
	for i := range windows {
		w := windows[i].Identity()
		head := uint16(w.Algorithm) | uint16(w.Jitter)<<8
		if w.Elastic {
			head |= 1 << 7 // no Algorithm has this bit
		}
		b = binary.LittleEndian.AppendUint16(b, head)
		b = binary.LittleEndian.AppendUint64(b, uint64(w.PeriodNs))
		b = binary.LittleEndian.AppendUint64(b, uint64(w.OffsetNs))
	}
	lo, _ := state.StableHash(b)
	return lo
}

// SetProxies tells all workers how many proxies of the domain are alive, unless that is what they know.
func (w *Worker) SetProxies(n uint32) {
	if n > 0 && n != w.tables.Proxies() {
		w.tables.SetProxies(n)
	}
}

// Definitions are those of the rules, by their numbers; none without rules of scope cluster.
func (w *Worker) Definitions() []quota.Definition { return w.definitions.ofRules }

// AssumeSilent runs do as if this worker had found the service silent itself, if silent says so. A management request
// is answered in it: if its worker has no stream, only the other workers know.
func (w *Worker) AssumeSilent(silent bool, do func()) {
	own := w.Service.Silent
	w.Service.Silent = own || silent
	do()
	w.Service.Silent = own
}

// BeginTalk says how long requests wait for the service, and by which number it knows this worker.
func (w *Worker) BeginTalk(timeoutNs int64, number uint64) {
	w.Service.TimeoutNs = timeoutNs
	w.Book.SetWorker(number)
}

// DecideLike has this worker's sources decide by the timeout and the silence of another one. Engine.Clone calls it, for
// an explanation: the clone has no talk with the service, which would say both.
func (w *Worker) DecideLike(from *Worker) {
	w.Service = Service{TimeoutNs: from.Service.TimeoutNs, Silent: from.Service.Silent}
}

// CollectIdle gives back units that nobody takes any more. It is called at each tick.
func (w *Worker) CollectIdle(now int64) {
	if w.Returns.AreDue(now) {
		w.Returns.CollectIdle(w.clock.Now(), now)
	}
}

// HasNews reports whether the sources have left something to send. They leave nothing that goes back.
func (w *Worker) HasNews() bool { return len(w.refills) > 0 || w.Book.HasListed() }

// DrainRefills returns what requests to come will soon need, once: units are to be asked for ahead.
func (w *Worker) DrainRefills() []Part {
	refills := w.refills
	w.refills = nil
	return refills
}

// Greet says in a stream's first message which domain and process asks.
func (w *Worker) Greet(m *quota.Asks) { m.Domain, m.Process = w.domain, w.tables.Process() }

// Inherit takes over what an earlier configuration of this VM holds or has not reported yet.
func (w *Worker) Inherit(from *Worker) {
	w.Book.Inherit(from.Book, w.definitions.newDefinitionID)
}
