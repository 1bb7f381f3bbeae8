package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// How a Source reads and writes the leases of its keys in the table that all workers of the proxy share.

// tableKey is what the subject's lease is found by: its key and, if requests give limits, these. So units that were
// granted under one limit are not spent under another, and no denial is remembered under another.
func (src *Source) tableKey(s *decide.Subject) []byte {
	if !src.rule.Finder.IsRequested(&s.Subject) {
		return s.Key.Bytes
	}
	src.key = appendLimits(append(src.key[:0], s.Key.Bytes...), s)
	return src.key
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

// A lease is written in two ways:
//
//	as Check has read it  takeLease and claimUncharged. If another worker has written it meanwhile, Take returns
//	                      Mismatch, and the request is checked again. claimUncharged leaves what it would claim to a
//	                      later ask
//	read anew             takeShare, refundLease, leaseAt.keepRest and watchedGrant.collect, by leaseAt.change

// leaseAt is where the lease of one key lies, also when there is no request of the key any more.
type leaseAt struct {
	source *Source
	key    state.LeaseKey
}

// change reads the lease, at an instant of both clocks, and writes it as changed says, unless that returns false. If
// another worker has written the lease meanwhile, it begins anew with what is there by now, so it may call changed
// several times. It returns the lease as it is written, nil if it is not; the next change of any lease uses its memory.
func (at *leaseAt) change(wallNs, now int64, changed func(e *state.LeaseEntry) bool) (written *state.LeaseEntry) {
	src := at.source
	e := &src.worker.entry
	for range state.MaxRetries {
		read := src.table.ReadHashed(e, at.key, wallNs, now)
		if src.rereadIfFromFuture(e, read, wallNs) != state.OK || !changed(e) {
			return nil
		}
		switch src.write(e) {
		case state.OK:
			return e
		case state.Mismatch: // once more
		default:
			return nil
		}
	}
	return nil
}

// write writes a lease, and counts what the record held that it may replace.
func (src *Source) write(e *state.LeaseEntry) state.Status {
	written := src.table.Write(e)
	if written == state.OK {
		src.noteLost(e.Replaced)
	}
	return written
}
