package engine

import "github.com/sluice-ratelimit/sluice/shared/state"

// Series is what one metric counts.
type Series struct {
	Domain, Rule string
	Override     string // empty: all requests of the rule
	Metric       string // without prefix and unit
}

// VMStarts counts the VMs that the proxy has made of this filter binary, see OnVMStart.
var VMStarts = Series{Metric: "vm_starts"}

// EachHolding calls f for what this worker's streams hold of each rule that holds, in a
// stable order.
func (e *Engine) EachHolding(f func(s Series, h state.StreamTotal)) {
	for i := range e.rules.List {
		if r := &e.rules.List[i]; r.Policy.Holds() {
			f(Series{Domain: e.policy.Domain, Rule: r.Policy.Name}, r.Metrics.Holding)
		}
	}
}

// ShareHolding says what the streams of this configuration in this VM hold of a rule, and
// returns what those of all VMs hold. self is unlike that of any other.
func (e *Engine) ShareHolding(s *Series, self uint64, own state.StreamTotal) (all state.StreamTotal, ok bool) {
	all, status := e.tables.ShareStreamTotal(uint32(state.OwnerID(s.Domain, "\x00", s.Rule)), self, own)
	return all, status == state.OK
}

// EachMetric calls f for every metric of every rule, in a stable order.
func (e *Engine) EachMetric(f func(s Series, count uint64)) {
	for i := range e.rules.List {
		r := &e.rules.List[i]
		s := Series{Domain: e.policy.Domain, Rule: r.Policy.Name}
		tell := func(name string, count uint64) {
			s.Metric = name
			f(s, count)
		}
		r.Metrics.Each(tell)
		for j := range r.Metrics.Named {
			n := &r.Metrics.Named[j]
			s.Override = n.Name
			tell("allowed", n.Allowed)
			tell("denied", n.Denied)
			tell("shadow_denied", n.ShadowDenied)
		}
	}
}
