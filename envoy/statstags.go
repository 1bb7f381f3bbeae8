package envoy

// StatsTag makes a label of a part of a metric's name, as an item of Envoy's stats_tags
// does: the outer group of the expression leaves the name, the inner is the value.
type StatsTag struct{ Name, Regex string }

// StatsTags are the labels of the filter's metrics. Each expression fits the names
// wasmcustom.[domain=.=DOMAIN;.;]rule=.=RULE;.;[override=.=NAME;.;]rate_limit_…
func StatsTags() []StatsTag {
	const (
		domain   = `(?:domain=\.=.*?;\.;)?`
		override = `(?:override=\.=.*;\.;)?`
		end      = `rate_limit_\w+$`
	)
	return []StatsTag{
		{"domain", `^wasmcustom\.(domain=\.=(.*?);\.;)rule=\.=.*;\.;` + end},
		{"rule", `^wasmcustom\.` + domain + `(rule=\.=(.*?);\.;)` + override + end},
		{"override", `^wasmcustom\.` + domain + `rule=\.=.*?;\.;(override=\.=(.*);\.;)` + end},
	}
}
