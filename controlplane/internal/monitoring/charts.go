package monitoring

type row struct {
	title  string
	charts []chart
}

type chart struct {
	title, unit string
	queries     []query
}

type query struct{ expr, legend string }

// byRule is a counter's increase a second, over all proxies.
func byRule(counter string) string {
	return `sum by (domain, rule) (rate(` + counter + `{rule=~"$rule"}[$__rate_interval]))`
}

// perRule draws counters by rule. With several ones the legend says which.
func perRule(counters ...string) (all []query) {
	for _, counter := range counters {
		legend := "{{domain}} {{rule}}"
		if len(counters) > 1 {
			legend += " " + counter
		}
		all = append(all, query{byRule(counter), legend})
	}
	return all
}

// total draws counters over all processes.
func total(counters ...string) (all []query) {
	for _, counter := range counters {
		all = append(all, query{"sum(rate(" + counter + "[$__rate_interval]))", counter})
	}
	return all
}

// A rule that has allowed nothing has no counter for it.
var deniedShare = byRule("rate_limit_denied_total") + " / (" + byRule("rate_limit_denied_total") +
	" + (" + byRule("rate_limit_allowed_total") + " or 0 * " + byRule("rate_limit_denied_total") + "))"

var rows = []row{
	{"Requests", []chart{
		{"Allowed", "reqps", perRule("rate_limit_allowed_total")},
		{"Denied", "reqps", perRule("rate_limit_denied_total")},
		{"Share that is denied", "percentunit", []query{{deniedShare, "{{domain}} {{rule}}"}}},
		{"Would be denied if the rule were enforced", "reqps", perRule("rate_limit_shadow_denied_total")},
		{"Decided without counting", "reqps", perRule("rate_limit_errors_total", "rate_limit_contention_total")},
		{"Values that count against the client", "reqps", perRule(
			"rate_limit_too_long_total", "rate_limit_cost_unreadable_total",
		)},
	}},
	{"Tables", []chart{
		{"Memory, in the proxy with the most", "bytes", []query{
			{`max by (domain, rule) (rate_limit_memory_usage_bytes{rule=~"$rule"})`, "{{domain}} {{rule}}"},
		}},
		{"Live keys / capacity, in the fullest proxy", "percentunit", []query{
			{`max by (domain, rule) (rate_limit_live_keys{rule=~"$rule"} / rate_limit_capacity)`, "{{domain}} {{rule}}"},
		}},
		{"Requests of new keys in full tables", "reqps", perRule("rate_limit_full_total", "rate_limit_floor_denied_total")},
		{"Live keys removed to make room", "ops", perRule("rate_limit_evicted_total")},
	}},
	{"Limits on what only the answer tells", []chart{
		{"Units held", "none", []query{
			{`sum by (domain, rule) (rate_limit_held_units{rule=~"$rule"})`, "{{domain}} {{rule}}"},
		}},
		{"Requests that hold them", "none", []query{
			{`sum by (domain, rule) (rate_limit_held_streams{rule=~"$rule"})`, "{{domain}} {{rule}}"},
		}},
		{"Answers, by what they were charged", "reqps", perRule(
			"rate_limit_settled_by_answer_total",
			"rate_limit_settled_by_estimate_total",
			"rate_limit_settled_by_cost_total",
			"rate_limit_settled_by_none_total",
		)},
		{"Units charged beyond what was held", "ops", perRule("rate_limit_charged_over_hold_total")},
		{"Answers whose tokens could not be read", "reqps", perRule(
			"rate_limit_unread_unknown_type_total",
			"rate_limit_unread_encoded_total",
			"rate_limit_unread_malformed_total",
			"rate_limit_unread_foreign_total",
			"rate_limit_unread_too_many_total",
			"rate_limit_unread_withheld_total",
		)},
		{"Holds renewed and lost", "ops", perRule("rate_limit_holds_renewed_total", "rate_limit_holds_lost_total")},
	}},
	{"Limits over all Envoys", []chart{
		{"Asks of the quota service", "reqps", []query{
			{"sum by (result) (rate(sluice_quota_asks_total[$__rate_interval]))", "{{result}}"},
		}},
		{"Time from an ask to its grant", "s", []query{
			{"histogram_quantile(0.5, sum by (le) (rate(sluice_quota_ask_seconds_bucket[$__rate_interval])))", "p50"},
			{"histogram_quantile(0.99, sum by (le) (rate(sluice_quota_ask_seconds_bucket[$__rate_interval])))", "p99"},
		}},
		{"Requests that waited for it, or were decided without it", "reqps", perRule(
			"rate_limit_quota_waited_total", "rate_limit_quota_unavailable_total",
		)},
		{"Units", "ops", append(total(
			"sluice_quota_units_granted_total", "sluice_quota_units_returned_total", "sluice_quota_units_lost_total"),
			perRule("rate_limit_leased_units_lost_total")...)},
		{"Degraded", "none", []query{
			{"sum(sluice_quota_degraded)", "services without their store"},
			{"sum(rate_limit_quota_degraded)", "workers without the service"},
		}},
		{"Problems of the store", "ops", total(
			"sluice_quota_store_errors_total",
			"sluice_quota_late_total",
			"sluice_quota_clock_rebased_total",
			"sluice_quota_mismatches_total",
			"sluice_quota_crowded_total",
			"sluice_quota_store_full_total",
		)},
	}},
	{"Control plane", []chart{
		{"Proxies", "none", []query{
			{"sum(sluice_proxies_connected)", "connected"}, {"sum(sluice_proxies_behind)", "behind"},
		}},
		{"Pushes", "ops", total("sluice_xds_pushes_total", "sluice_xds_acks_total", "sluice_xds_nacks_total")},
		{"Revision", "none", []query{{"max(sluice_revision)", "newest"}, {"max(sluice_revisions_damaged)", "damaged"}}},
		{"Refused", "ops", append([]query{
			{"sum by (code) (rate(sluice_http_refused_total[$__rate_interval]))", "HTTP {{code}}"}},
			total("sluice_xds_foreign_node_ids_total")...)},
	}},
}
