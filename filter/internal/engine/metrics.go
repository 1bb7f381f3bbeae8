package engine

// Series is what one metric counts.
type Series struct {
	Domain, Rule string
	Override     string // empty: all requests of the rule
	Metric       string // without prefix and unit
}

// EachMetric calls f for every metric of every rule, in a stable order.
func (e *Engine) EachMetric(f func(s Series, count uint64)) {
	for i := range e.rules.List {
		r := &e.rules.List[i]
		s := Series{Domain: e.policy.Domain, Rule: r.Policy.Name}
		r.Each(func(name string, count uint64) {
			s.Metric = name
			f(s, count)
		})
		for j := range r.Named {
			n := &r.Named[j]
			s.Override = n.Name
			for _, c := range [...]struct {
				name  string
				count uint64
			}{{"allowed", n.Allowed}, {"denied", n.Denied}, {"shadow_denied", n.ShadowDenied}} {
				s.Metric = c.name
				f(s, c.count)
			}
		}
	}
}
