package lease

import (
	"encoding/binary"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Part is what the service is asked of one key, or told of it. It is a part of one ask:
//
//	of                  made by                            has       what it does
//	a rule that leases  Source.beginAsk and takeLease      lease     asks for units
//	a rule that holds   HoldSource.beginAsk, ReportPart    Reporter  asks for units, and reports the account
//	a look              clusterRule.lookPart               neither   asks how the key stands: Wire.Inspect
type Part struct {
	Wire       quota.Part        // as it is sent; each request that joins the ask adds its cost
	Definition *quota.Definition // which Wire names by its number

	lease    leaseAt          // keeps what the service grants, and no request takes
	Reporter account.Reporter // its account counts what the service grants, and requests get
}

// leaseAt is where the lease of one key lies, also when there is no request of the key any more.
type leaseAt struct {
	source *Source
	key    state.LeaseKey
}

// change begins to change the lease, at an instant of both clocks. A worker changes one lease at a time.
func (at *leaseAt) change(wallNs, now int64) *leaseChange {
	c := &at.source.worker.change
	c.at, c.triesLeft = *at, state.MaxRetries
	c.wallNs, c.NowNs = wallNs, now
	return c
}

// leaseChange reads a lease, and writes it. If another worker has written it meanwhile, it begins anew with what is
// there by now:
//
//	for c := at.change(wallNs, now); c.read(); {
//		// change c.Lease, or return
//		if c.write() {
//			return // it is changed
//		}
//	}
//	// the proxy's store fails
type leaseChange struct {
	state.LeaseEntry
	at        leaseAt
	wallNs    int64
	triesLeft int
}

// read returns false if the lease cannot be changed.
func (c *leaseChange) read() bool {
	if c.triesLeft == 0 {
		return false
	}
	c.triesLeft--
	src := c.at.source
	status := src.table.ReadHashed(&c.LeaseEntry, c.at.key, c.wallNs, c.NowNs)
	return src.rereadIfFromFuture(&c.LeaseEntry, status, c.wallNs) == state.OK
}

// write reports whether the lease is written.
func (c *leaseChange) write() bool {
	status := c.at.source.write(&c.LeaseEntry)
	if status != state.Mismatch {
		c.triesLeft = 0
	}
	return status == state.OK
}

// ReportPart asks for no units, so that it only reports what is held.
func ReportPart(acc *account.Account) Part {
	return Part{Definition: acc.Definition, Reporter: acc.Reporter(), Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key,
	}}
}

// CountsDenied reports whether an ask for it counts, or prolongs a block, even if it is denied.
func (p *Part) CountsDenied() bool { return p.Definition.CountsDenials() }

// Need is that a request which waits needs its cost of one key.
type Need struct {
	subject    *decide.Subject
	definition uint32 // the number of the key's limits: a request has one need of each
	keeper     keeper // of the grant of which it has got units, nil if it has got none
}

// clusterSource is the source of a clusterRule: a Source or a HoldSource.
type clusterSource interface {
	// beginAsk begins an ask for the subject's cost: it may write the key's lease, or open its account.
	beginAsk(s *decide.Subject) Part
	// lookPart is what is asked for a look at the subject's key.
	lookPart(s *decide.Subject) Part
	// leaseOf is LeaseOf.
	leaseOf(s *decide.Subject) *result.Lease
}

// BeginAsk begins an ask for what the request of a pending verdict needs: it may write leases and open accounts, as
// beginAsk says. It returns the parts of the ask, those of shadow rules last, and what the request now waits for. If
// the request has waited before, earlier is what it needed then.
func BeginAsk(earlier []Need, v *decide.Verdict) (needs []Need, parts []Part) {
	pending := 0
	for _, s := range v.Subjects {
		if s.IsPending() {
			pending++
		}
	}
	needs, parts = keepGranted(earlier), make([]Part, 0, pending)
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.IsPending() && s.Shadow == shadow {
				p := s.Rule.Source.(clusterSource).beginAsk(s)
				needs = append(needs, Need{subject: s, definition: p.Wire.Definition})
				parts = append(parts, p)
			}
		}
	}
	return needs, parts
}

// keepGranted returns those of a request's needs that it need not ask for anew, in the memory of needs. The request has
// been decided again, and has to wait again. What becomes of a need:
//
//	outcome of its subject  has units  the need
//	Pending                 or not     ends: the units do not suffice, and go back. BeginAsk makes another need of the
//	                                   subject
//	any other               yes        is kept: the request takes them once it has those of the other rules
//	any other               no         ends: the rule has found units elsewhere, does without, or denies
func keepGranted(needs []Need) []Need {
	granted := needs[:0]
	for i := range needs {
		switch n := &needs[i]; {
		case n.subject.IsPending():
			n.Reclaim()
		case n.keeper != nil:
			granted = append(granted, *n)
		}
	}
	return granted
}

// definitions are what a worker tells the service of limits.
type definitions struct {
	ofRules []quota.Definition // by their numbers; none without rules of scope cluster

	requested map[requestedKey]*quota.Definition // of the last limits that requests have given, up to maxRequested
	newestID  uint32                             // the number of the newest of these
	key       []byte                             // memory for a requestedKey
}

// maxRequested is how many definitions a worker keeps of limits that requests give. Others
// are made anew, under new numbers.
const maxRequested = 256

// definition is what the service is told of the subject's limits.
func (src *clusterRule) definition(s *decide.Subject) *quota.Definition {
	defs := &src.worker.definitions
	if !src.rule.Finder.IsRequested(&s.Subject) {
		return &defs.ofRules[src.firstDefinition+uint32(s.Override-noOverride)]
	}
	defs.key = appendRequestedKey(defs.key[:0], src.firstDefinition, s)
	if d := defs.requested[requestedKey(defs.key)]; d != nil {
		return d
	}
	if len(defs.requested) >= maxRequested {
		clear(defs.requested)
	}
	d := src.rule.Finder.Definition(&s.Subject)
	d.ID = defs.newDefinitionID()
	defs.requested[requestedKey(defs.key)] = &d
	return &d
}

// noOverride is Subject.Override of a key for which a rule's own limits hold.
const noOverride = -1

// addRule adds the definitions of a rule: that of its own limits, and then those of its overrides. It returns the
// number of the first.
func (defs *definitions) addRule(r *decide.Rule) (firstDefinition uint32) {
	firstDefinition = uint32(len(defs.ofRules))
	for override := noOverride; override < len(r.Policy.Overrides); override++ {
		d := r.Finder.DefinitionOf(override)
		d.ID = uint32(len(defs.ofRules))
		defs.ofRules = append(defs.ofRules, d)
	}
	return firstDefinition
}

// newDefinitionID returns a number that no definition of a rule has. Numbers begin anew after the
// largest.
func (defs *definitions) newDefinitionID() uint32 {
	defs.newestID = max(defs.newestID+1, uint32(len(defs.ofRules)))
	return defs.newestID
}

// requestedKey finds the definition of limits that a request gives. It is the rule, by its firstDefinition, and then
// the limits as appendLimits has them.
type requestedKey string

func appendRequestedKey(b []byte, firstDefinition uint32, s *decide.Subject) []byte {
	return appendLimits(binary.LittleEndian.AppendUint32(b, firstDefinition), s)
}

// limitsOf returns the limits, if they were given for that rule.
func (k requestedKey) limitsOf(firstDefinition uint32) (limits string, ok bool) {
	return strings.CutPrefix(string(k), string(binary.LittleEndian.AppendUint32(nil, firstDefinition)))
}

// appendLimits appends the subject's limits: as many bytes for each key of a rule.
func appendLimits(b []byte, s *decide.Subject) []byte {
	for i := range s.Windows {
		b = binary.LittleEndian.AppendUint32(b, s.Windows[i].Limit)
	}
	return b
}
