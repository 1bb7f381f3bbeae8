package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Look is how the keys of one client stand at the service, at most one key of each rule. A client that asks for its own
// usage is told that. The service is asked, and grants nothing:
//
//	Look.AddKey       a key of each rule of scope cluster that the client is shown
//	Client.WaitLook   asks for their Parts, up to quota.MaxParts in an ask
//	Look.Note         writes down how the key of a part stands
//	Look.Told         is that, for Subject.Look of the same key
//
// A key stays unknown if the service is silent, if its store fails for the key, or if too many keys are
// looked at already.
//
// It is not decide.Verdict.CheckEach, which judges a request without counting it.
type Look struct{ keys []lookedKey }

// lookedKey is one key, and how it stands.
type lookedKey struct {
	part      Part
	rule      *decide.Rule
	standings []leased.Standing // nil: not known
}

// AddKey adds the subject's key, unless its rule has scope proxy.
func (l *Look) AddKey(s *decide.Subject) {
	src, ok := s.Rule.Source.(clusterSource)
	if !ok || s.Unlimited {
		return
	}
	l.keys = append(l.keys, lookedKey{part: src.lookPart(s), rule: s.Rule})
}

// Size is how many keys the look has; nil has none.
func (l *Look) Size() int {
	if l == nil {
		return 0
	}
	return len(l.keys)
}

// Parts returns what the service is asked of up to quota.MaxParts keys, from one of them on.
func (l *Look) Parts(from int) []Part {
	parts := make([]Part, min(quota.MaxParts, len(l.keys)-from))
	for i := range parts {
		parts[i] = l.keys[from+i].part
	}
	return parts
}

// Note writes down how the key of a part stands, by the grant for it, which came at cameNs. The grant is nil if the
// service has none. The ask may be another look's, so the key is found by its definition: a look has one key of each.
func (l *Look) Note(p *Part, grant *quota.Grant, cameNs int64) {
	if grant == nil || grant.Failed {
		return
	}
	for i := range l.keys {
		if k := &l.keys[i]; k.part.Wire.Definition == p.Wire.Definition {
			k.standings = p.standings(grant, cameNs)
		}
	}
}

// Told is what the service has said of the subject's key, nil if nothing, or if AddKey has not had it.
func (l *Look) Told(s *decide.Subject) []leased.Standing {
	if l == nil {
		return nil
	}
	for i := range l.keys {
		if k := &l.keys[i]; k.rule == s.Rule {
			return k.standings
		}
	}
	return nil
}
