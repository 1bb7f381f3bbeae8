package descriptor

import "github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"

// NoteEachEnvoy notes who counts what envoyproxy/ratelimit counts: its own limits and the global ones of Envoy Gateway.
func NoteEachEnvoy(to *draft.Draft) {
	if !to.Cluster {
		to.NoteImport("envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of " +
			"them admit N times these limits. --scope cluster makes rules that count over all.")
	}
}

// NoteCalendar notes how units differ that have fixed lengths in envoyproxy/ratelimit.
func NoteCalendar(to *draft.Draft, unit string) {
	if unit == "month" || unit == "year" {
		to.NoteImport("envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of " +
			"365. Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}
