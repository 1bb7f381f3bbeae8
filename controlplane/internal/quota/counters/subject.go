package counters

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// subject is a key of a rule, as the quota service knows it.
type subject struct {
	rule       *policy.Rule
	parts      []string
	key        [16]byte
	definition lease.Definition
	order      []int // definition.Windows[order[i]] is the policy's limit i
	shadow     bool
	unlimited  bool
}

func newSubject(p *policy.Policy, r *policy.Rule, parts []string) (*subject, error) {
	if len(parts) != len(r.Key) {
		word := "parts"
		if len(r.Key) == 1 {
			word = "part"
		}
		return nil, fmt.Errorf("the key of rule %q has %d %s, not %d", r.Name, len(r.Key), word, len(parts))
	}
	hashed := state.AppendPart(state.AppendPart(nil, p.Domain), r.Counter)
	for i := range parts {
		label, value, err := r.Key[i].Cut(parts[i])
		if err != nil {
			return nil, fmt.Errorf("part %d of the key of rule %q: %w", i, r.Name, err)
		}
		if label != "" {
			hashed = state.AppendPart(hashed, label)
		}
		hashed = state.AppendPart(hashed, value)
	}
	lo, hi := state.StableHash(hashed)
	s := &subject{rule: r, parts: parts, key: lease.KeyOf(lo, hi), unlimited: len(r.Limits) == 0}
	s.shadow = r.Mode == policy.ModeShadow || hi%100 >= uint64(r.EnforcePercent)
	s.definition = lease.Definition{
		Counter: state.NewCounterID(p.Domain, r.Counter, r.KeyDefinition(), 0), Windows: r.Windows(), Lease: r.Lease, CountDenied: r.CountDenied,
	}
	for i := range r.Overrides {
		if o := &r.Overrides[i]; holds(o, r, parts) {
			s.definition.Windows, s.unlimited = o.Windows(), s.unlimited || o.Unlimited
			break
		}
	}
	slices.SortFunc(s.definition.Windows, limit.Window.Compare)
	for _, l := range r.Limits {
		s.order = append(s.order, slices.IndexFunc(s.definition.Windows, l.Same))
	}
	return s, nil
}

// holds reports whether the override is for the key.
func holds(o *policy.Override, r *policy.Rule, parts []string) bool {
	for i := range o.Key {
		if !matches(&o.Key[i], parts[i], !o.Raises(r)) {
			return false
		}
	}
	return true
}

// matches reports whether the pattern holds for a value. long says whether it does
// for one that is too long for a regular expression.
func matches(p *policy.Pattern, value string, long bool) bool {
	switch p.Kind {
	case policy.Any, policy.Present:
		return true
	case policy.Absent:
		return false
	case policy.Exact:
		return value == p.Text
	case policy.Prefix:
		return strings.HasPrefix(value, p.Text)
	case policy.Suffix:
		return strings.HasSuffix(value, p.Text)
	case policy.Regexp:
	}
	if len(value) > automaton.MaxValueBytes {
		return long
	}
	return p.Automaton.Match(value)
}
