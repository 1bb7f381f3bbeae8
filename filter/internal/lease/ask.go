package lease

import (
	"encoding/binary"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Part is what the service is asked of one key, or told of it. It is a part of one ask. All that make one are here.
type Part struct {
	Wire       quota.Part        // as it is sent; each request that joins the ask adds its cost
	Definition *quota.Definition // which Wire names by its number

	// What the service grants, and no request takes, is kept in one of:
	lease   leaseAt          // of a rule that leases
	Account *account.Account // of a rule that holds: the part reports it. Others report nothing
}

// lookPart is what is asked for a look at the subject's key.
func (src *clusterRule) lookPart(s *decide.Subject) Part {
	d := src.definition(s)
	return Part{Definition: d, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Inspect: true,
	}}
}

// leasePart asks for a cost of the subject's key, and says how many units of it were spent in silence. A refill has a
// cost of 0: it only asks ahead of need.
func (src *Source) leasePart(s *decide.Subject, cost, spent uint32) Part {
	e, d := s.Cluster.Lease, src.definition(s)
	p := Part{Definition: d, lease: leaseAt{src, e.Key()}, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Cost: cost, Waiting: cost,
		Spent: spent, Shadow: s.Shadow, NoBlock: s.MustNotBlock(),
	}}
	if src.keeps {
		p.Wire.Ahead = src.refill.ahead(e)
	}
	return p
}

// holdPart asks for the subject's cost, and reports what is held.
func holdPart(s *decide.Subject, acc *account.Account) Part {
	return Part{Definition: acc.Definition, Account: acc, Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key, Cost: s.Cost, Waiting: s.Cost,
		Shadow: s.Shadow, NoBlock: s.MustNotBlock(),
	}}
}

// ReportPart asks for no units, so that it only reports what is held.
func ReportPart(acc *account.Account) Part {
	return Part{Definition: acc.Definition, Account: acc, Wire: quota.Part{
		Definition: acc.Definition.ID, Key: acc.Key,
	}}
}

// ProbePart asks how a key stands that nobody has, to hear whether the service answers.
func (w *Worker) ProbePart() Part {
	d := &w.definitions.ofRules[0]
	return Part{Definition: d, Wire: quota.Part{Definition: d.ID, Inspect: true}}
}

// CountsDenied reports whether an ask for it counts, or prolongs a block, even if it is denied.
func (p *Part) CountsDenied() bool { return p.Definition.CountsDenials() }

// BeginAsk begins an ask for what the subjects of a pending verdict need: it may write leases and open accounts, as
// beginAsk says. It returns the parts of the ask, those of shadow rules last. If the request has waited before, a
// subject may have got units that do not suffice: these go back first.
func BeginAsk(v *decide.Verdict) []Part {
	pending := 0
	for _, s := range v.Subjects {
		if s.IsPending() {
			pending++
		}
	}
	parts := make([]Part, 0, pending)
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.IsPending() && s.Shadow == shadow {
				takeBack(s)
				p := s.Rule.Source.(clusterSource).beginAsk(s)
				s.Cluster.AskedFor = p.Definition
				parts = append(parts, p)
			}
		}
	}
	return parts
}

// EndAsks takes back what the subjects of a verdict have got and not taken: the request is decided.
func EndAsks(v *decide.Verdict) {
	for _, s := range v.Subjects {
		takeBack(s)
	}
}

// takeBack takes back what the subject has got and not taken.
func takeBack(s *decide.Subject) {
	if s.Cluster.Allotment.Units > 0 {
		s.Rule.Source.(clusterSource).takeBack(s)
	}
	s.Cluster.Allotment = cluster.Allotment{}
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
