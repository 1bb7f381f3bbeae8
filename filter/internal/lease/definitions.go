package lease

import (
	"encoding/binary"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

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

// ownDefinition is that of the rule's own limits. All of a rule have the same counter.
func (src *clusterRule) ownDefinition() *quota.Definition {
	return &src.worker.definitions.ofRules[src.firstDefinition]
}

// noOverride is Subject.Override of a key for which a rule's own limits hold.
const noOverride = -1

// addRule adds the definitions of a rule: that of its own limits, and then those of its overrides. It returns the
// number of the first. Parts point to them, so all rules are added before the first request.
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
