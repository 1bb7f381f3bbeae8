package respond

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/fields"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// AppendUsage appends how a rule stands for the subject's key, a result.RuleUsage. The client whose key it
// is reads it, so it has nothing of the key, nor which override holds for it.
func AppendUsage(b []byte, s *decide.Subject, now int64) []byte {
	p := s.Rule.Policy
	r := result.RuleUsage{Name: p.Name, HasBlock: p.Block != nil && !s.Unlimited}
	if _, known := s.View(); known || s.Unlimited {
		r.Windows = windowUsages(s, now)
		blocked := fields.Seconds(s.BlockedNs(now))
		r.Blocked = &blocked
	}
	return r.Append(b)
}

// windowUsages are the limits that the rule has for the subject's key.
func windowUsages(s *decide.Subject, now int64) []result.WindowUsage {
	list := []result.WindowUsage{}
	view, known := s.View()
	if !known { // no limit holds for the key
		return list
	}
	all := Windows(s, now)
	for i := range all {
		w := &all[i]
		if w.Unlimited {
			continue
		}
		u := result.WindowUsage{
			Name: w.Name, Limit: *w.Limit, PerNs: w.PerNs, Used: w.Used, Held: view.Held(),
			Remaining: *w.Remaining, Reset: fields.Seconds(w.ResetNs),
		}
		if w.Requests != nil {
			u.Requests = *w.Requests
		}
		list = append(list, u)
	}
	return list
}
