package counters

import (
	"github.com/sluice-ratelimit/sluice/shared/policy"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

// subject is a key of a rule, as the quota service knows it.
type subject struct {
	policy.Subject
	rule       *policy.Rule
	parts      []string
	key        [16]byte
	definition lease.Definition
	order      []int // definition.Windows[order[i]] is the policy's limit i
}

func newSubject(p *policy.Policy, r *policy.Rule, parts, limits []string) (*subject, error) {
	s := &subject{rule: r, parts: parts}
	if err := r.ParseKey(&s.Key, parts); err != nil {
		return nil, err
	}
	var err error
	if s.Said, err = r.ParseLimits(nil, limits); err != nil {
		return nil, err
	}
	of := p.Subjects(r)
	of.Find(&s.Subject)
	s.key, s.definition, s.order = of.QuotaKey(&s.Subject), of.Definition(&s.Subject), of.Order
	return s, nil
}
