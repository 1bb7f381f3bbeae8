package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// clusterRule is a rule of scope cluster, and what its source of either kind does: how a check begins,
// and how it ends by an allotment or without the service.
//
// A check goes down this list to the first line that applies:
//
//	line                                               outcome                                    by
//	the request has waited, and its allotment decides  HasRoom from Allotted, Denied, HeldBack    byAllotment
//	                                                   or Blocked
//	the proxy's store fails                            Failed                                     LeaseSource
//	the key is known to be blocked                     Blocked                                    both sources
//	cost 0, and the rule has no block                  Denied by a limit of 0, or HasRoom         atNoCost
//	the key's lease has enough units                   HasRoom from LeaseTable                    LeaseSource
//	the key's lease has a denial that is not over      Denied                                     LeaseSource
//	the service is unavailable for the key             what OwnShare decides, Silent, Starting,   alone
//	                                                   or Denied by a limit of 0
//	the request has waited, and no answer came         the same, but not Starting                 leaveToService
//	too many requests wait, or the service took no     Contended                                  leaveToService
//	more asks
//	none of these: the service may have units          Pending: the request waits                 leaveToService
type clusterRule struct {
	worker *Worker
	rule   *decide.Rule
	local  *local.Source // counts while the service is silent, if on_unavailable is local
	blocks bool          // the rule has a block: a request that costs nothing asks whether its key is blocked

	firstDefinition uint32 // the number of its own limits: see addRule. No other rule has it

	usage limit.Usage // memory for Usage
}

// clusterSource is the source of a clusterRule: a LeaseSource or a HoldSource.
type clusterSource interface {
	// askPart asks for the subject's cost. It may open the key's account.
	askPart(s *decide.Subject) Part
	// giveBack gives the units of the subject's Allotment back, which Take has not taken.
	giveBack(s *decide.Subject)
	// lookPart is what is asked for a look at the subject's key.
	lookPart(s *decide.Subject) Part
	// leaseOf is LeaseOf.
	leaseOf(s *decide.Subject) *result.Lease
}

var (
	_ clusterSource = (*LeaseSource)(nil)
	_ clusterSource = (*HoldSource)(nil)
)

// LeaseOf is what an explanation tells operators: what this proxy knew of the subject's key when it was checked, or by
// Operate. It is nil for a rule of scope proxy, and for a key that is Unlimited.
func LeaseOf(s *decide.Subject) *result.Lease {
	src, ok := s.Rule.Source.(clusterSource)
	if !ok || s.Unlimited {
		return nil
	}
	return src.leaseOf(s)
}

// begin begins a check, a look or an operation. From then on Record.Now is the wall clock, and Cluster.MonotonicNs the
// other one.
func (src *clusterRule) begin(s *decide.Subject, wallNs int64) *cluster.Carried {
	s.BeginQuotaCheck(wallNs, src.worker.clock.Monotonic())
	return &s.Cluster
}

// isKnown reports whether this proxy's share has decided, or the service has said how all windows of the key stand.
func isKnown(s *decide.Subject) bool {
	return s.Cluster.From == cluster.OwnShare || len(s.Cluster.Standings) >= len(s.Rule.Finder.Windows)
}

// byAllotment decides by what the service has said to the request.
func byAllotment(s *decide.Subject) decide.Finding {
	c := &s.Cluster
	said := &c.Allotment
	c.Standings = said.Standings
	switch said.Reason {
	case cluster.NotDenied:
	case cluster.Denied:
		return deniedFor(s, said.WaitNs, decide.Denied)
	case cluster.HeldBack:
		return deniedFor(s, said.WaitNs, decide.HeldBack)
	case cluster.Blocked:
		return deniedFor(s, said.WaitNs, decide.Blocked)
	}
	c.From = cluster.Allotted
	if s.Cost == 0 {
		return atNoCost(s)
	}
	return decide.Finding{Found: decide.HasRoom}
}

// deniedFor is a denial of a request that passes after a wait, or never if that is limit.Never.
func deniedFor(s *decide.Subject, waitNs int64, denial decide.Found) decide.Finding {
	if waitNs == limit.Never {
		return decide.Finding{Found: denial, PassNs: limit.Never}
	}
	return decide.Finding{Found: denial, PassNs: s.Record.Now + max(waitNs, 1)}
}

// isFree reports whether atNoCost decides without the service: a rule with a block asks whether the key is blocked.
func (src *clusterRule) isFree(s *decide.Subject) bool { return s.Cost == 0 && !src.blocks }

// atNoCost decides about a cost of 0 whose key is not blocked: only a limit of 0 denies it.
func atNoCost(s *decide.Subject) decide.Finding {
	if limit.Shut(s.Windows) {
		return deniedFor(s, limit.Never, decide.Denied)
	}
	return decide.Finding{Found: decide.HasRoom}
}

// leaveToService is the outcome if only the service can decide: Pending, so that it is asked, unless the request must
// not wait.
func (src *clusterRule) leaveToService(s *decide.Subject) decide.Finding {
	switch asked := s.Cluster.Asked; {
	case asked == cluster.TimedOut:
		return src.alone(s, decide.Silent)
	case asked == cluster.Rejected, asked == cluster.NotAsked && src.worker.Service.Crowded:
		return decide.Finding{Found: decide.Contended}
	}
	return decide.Finding{Found: decide.Pending}
}

// alone decides without the service, for the reason why: by this proxy's share, if on_unavailable is local, or by a
// limit of 0. If nothing decides, the outcome is why. If the store is starting and the share is all held, it is
// Starting, not HeldBack.
func (src *clusterRule) alone(s *decide.Subject, why decide.Found) decide.Finding {
	if src.local == nil {
		if s.Cost == 0 && limit.Shut(s.Windows) {
			return deniedFor(s, limit.Never, decide.Denied)
		}
		return decide.Finding{Found: why}
	}
	own := src.checkShare(s)
	if own.Found == decide.HeldBack && why == decide.Starting {
		return decide.Finding{Found: why}
	}
	return own
}

// checkShare decides by what this proxy has counted while the service was silent.
func (src *clusterRule) checkShare(s *decide.Subject) decide.Finding {
	c := &s.Cluster
	c.ShareMemory = src.shareOf(c.ShareMemory, s.Windows)
	s.CountedKey.Windows = c.ShareMemory
	own := src.local.Check(s, s.Record.Now)
	if own.Found != decide.Failed {
		s.Cluster.From = cluster.OwnShare
	}
	return own
}

// showShare has the subject show what this proxy has counted by itself, if on_unavailable is local. It returns false if
// the proxy's store fails.
func (src *clusterRule) showShare(s *decide.Subject) (ok bool) {
	return src.local == nil || src.checkShare(s).Found != decide.Failed
}

// shareOf returns, in memory, what one proxy may admit without the service: the limits of a key, and what their windows
// pay, divided by the number of proxies. Of 10 each of three proxies may admit 3, of 2 each may admit 1.
func (src *clusterRule) shareOf(memory, windows []limit.Window) []limit.Window {
	proxies := max(src.worker.tables.Proxies(), 1)
	share := memory[:0]
	share = append(share, windows...)
	for i := range share {
		w := &share[i]
		w.Limit = divide(w.Limit, proxies)
		w.Burst = divide(w.Burst, proxies)
		w.Pays = divide(w.Pays, proxies)
	}
	return share
}

func divide(units, proxies uint32) uint32 { return min(units, max(1, units/proxies)) }

// Usage is how the key stands over all proxies, as the service has said last.
func (src *clusterRule) Usage(s *decide.Subject, column int) *limit.Usage {
	if s.Cluster.From == cluster.OwnShare {
		return src.local.Usage(s, column)
	}
	w := &s.CountedKey.Windows[column]
	src.usage = limit.Usage{Log: src.usage.Log[:0]}
	if column >= len(s.Cluster.Standings) {
		return &src.usage
	}
	st := &s.Cluster.Standings[column]
	switch leftNs := st.ResetNs - s.Cluster.MonotonicNs; {
	case w.Algorithm == limit.Concurrency: // what is held does not end by a clock
		src.usage.Used = st.Used
	case leftNs > 0:
		src.usage = w.Standing(s.Record.Now, st.Used, leftNs, src.usage.Log)
	}
	return &src.usage
}

// Look finds out nothing: only the service knows, and has told it by Look.Told.
func (src *clusterRule) Look(s *decide.Subject, wallNs int64, told []leased.Standing) (known bool) {
	src.begin(s, wallNs)
	s.Cluster.Standings = told
	return isKnown(s)
}

// KeepDenied keeps a hit that the proxy's share has denied: what the service denies, it has kept. The
// service charges nothing for it.
func (src *clusterRule) KeepDenied(s *decide.Subject, keep decide.Keep) (passNs int64, status state.Status) {
	return src.local.KeepDenied(s, keep)
}

// Persist stores the record of this proxy's share, if that was checked: all else has no record that moves. What is held
// has none, and a lease of an earlier start of the clock is dropped when it is read.
func (src *clusterRule) Persist(s *decide.Subject) {
	if s.Cluster.From == cluster.OwnShare {
		src.local.Persist(s)
	}
}

// Tables are where the proxy counts without the service.
func (src *clusterRule) Tables() []decide.Table {
	if src.local == nil {
		return nil
	}
	return src.local.Tables()
}

// quotaKey is what the service knows the subject's key by.
func (src *clusterRule) quotaKey(s *decide.Subject) [16]byte {
	return src.rule.Finder.QuotaKey(&s.Subject)
}
