package lease

import (
	"encoding/binary"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
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

// Worker is what the rules of scope cluster of one worker have in common. Their sources and the
// Client share it: what the one writes, the other reads.
type Worker struct {
	definitions
	clock     Clock
	tables    *state.Tables
	domain    string
	timeoutNs int64 // how long a request waits, as NewClient says

	// The Client writes them, and sources read them.
	silent  bool   // it has found the service silent for the timeout: nobody waits
	crowded bool   // so many requests wait that no other may
	proxies uint32 // of the domain, by the service's last message

	// Sources write them, and Client.Flush asks and reports by them.
	refills  []part // what requests to come will soon need
	accounts accounts

	// The Client alone: each grant with units in a lease, which Tick may give back. They are here because a grant
	// that is put into a lease knows its source, and by that the Worker, but no Client.
	returnables returnables

	// Memory:
	entry   state.LeaseEntry // for records that no request reads
	visitor state.Entry      // for visits of all pages
}

// NewWorker returns a worker without rules.
func NewWorker(clock Clock, tables *state.Tables, domain string) *Worker {
	return &Worker{
		clock: clock, tables: tables, domain: domain,
		definitions: definitions{requested: map[requestedKey]*quota.Definition{}},
		accounts:    accounts{byName: map[accountName]*account{}},
	}
}

// Add gives a rule its source of units. fallback is the table that counts in the place of a
// silent service, if on_unavailable is local.
func (w *Worker) Add(r *decide.Rule, fallback *state.Table) {
	p, windows := r.Policy, r.Finder.Windows
	cluster := clusterRule{worker: w, rule: r, first: w.addDefinitions(r), blocks: p.Block != nil}
	if p.OnUnavailable == policy.UnavailableLocal {
		cluster.local = local.New(r, fallback, &w.visitor)
	}
	if p.Holds() {
		r.SetSource(&HoldSource{clusterRule: cluster}, fallback)
		return
	}
	table := w.tables.Leases(r.Finder.Counter("\x00lease", p.Capacity), layoutOf(windows), len(windows), p.Capacity)
	r.SetSource(&Source{
		clusterRule: cluster, table: table, keeps: p.Lease != quota.LeaseOff,
		refill: refillOf(windows), idleNs: quota.IdleNs(windows),
	}, table.Table())
}

// layoutOf is a hash of what makes windows the same; see limit.Window.Same.
func layoutOf(windows []limit.Window) uint64 {
	var b []byte
	for i := range windows {
		w := &windows[i]
		b = append(b, byte(w.Algorithm), w.Jitter)
		b = binary.LittleEndian.AppendUint64(b, uint64(w.PeriodNs))
		b = binary.LittleEndian.AppendUint64(b, uint64(w.OffsetNs))
	}
	lo, _ := state.StableHash(b)
	return lo
}

// SetProxies tells all workers how many proxies of the domain are alive.
func (w *Worker) SetProxies(n uint32) {
	if n != w.proxies && n > 0 {
		w.proxies = n
		w.tables.SetProxies(n)
	}
}

// IsSilent reports whether this worker has found the service silent.
func (w *Worker) IsSilent() bool { return w.silent }

// AssumeSilent runs do as if this worker had found the service silent itself, if silent says so. A management request
// is answered in it: if its worker has no stream, only the other workers know.
func (w *Worker) AssumeSilent(silent bool, do func()) {
	own := w.silent
	w.silent = own || silent
	do()
	w.silent = own
}

// DecideLike has this worker's sources decide by the timeout and the silence of another one. Engine.Clone calls it, for
// an explanation: the clone has no Client, which would say both.
func (w *Worker) DecideLike(from *Worker) { w.timeoutNs, w.silent = from.timeoutNs, from.silent }

// HasNews reports whether there is something to send that no request waits for: see
// Client.Flush.
func (w *Worker) HasNews() bool { return len(w.refills)+len(w.accounts.listed) > 0 }

// mustNotWait reports whether the request must not wait for the service: it has waited, and the service
// takes no more asks, or it has not waited, and too many others do.
func (w *Worker) mustNotWait(s *decide.Subject) bool {
	return s.Quota.Wait == decide.Rejected || s.Quota.Wait == decide.NotWaited && w.crowded
}
