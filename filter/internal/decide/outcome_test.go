package decide

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// choices are what policies say of a rule that cannot decide: allow, deny, and the defaults, among them that this
// proxy's share decides while the quota service is silent.
var choices = [...]policy.Rule{
	{
		OnFull: policy.FullAllow, OnError: policy.FailAllow, OnContention: policy.FailAllow,
		OnUnavailable: policy.UnavailableAllow,
	},
	{
		OnFull: policy.FullDeny, OnError: policy.FailDeny, OnContention: policy.FailDeny,
		OnUnavailable: policy.UnavailableDeny,
	},
	{
		OnFull: policy.FullInherit, OnError: policy.FailAllow, OnContention: policy.FailDeny,
		OnUnavailable: policy.UnavailableLocal,
	},
}

// byChoice says by which of the choices an outcome denies.
type byChoice = [len(choices)]bool

var (
	never      = byChoice{}
	always     = byChoice{true, true, true}
	ifDeny     = byChoice{1: true}
	ifNotAllow = byChoice{1: true, 2: true} // also by default
)

// comesTo is what each outcome comes to.
var comesTo = map[Outcome]struct {
	reason    string
	denies    byChoice
	knownEnds bool
	skipped   Outcome        // what a shadow rule of a denied request makes of it
	counts    metrics.Counts // if the key starts from a floor
}{
	HasRoom:    {"", never, false, NotAsked, metrics.Counts{}},
	Taken:      {"", never, false, Taken, metrics.Counts{}},
	Pending:    {"not_asked", never, false, NotAsked, metrics.Counts{}},
	Denied:     {"limit", always, false, NotAsked, metrics.Counts{FloorDenied: 1}},
	Blocked:    {"blocked", always, false, NotAsked, metrics.Counts{FloorDenied: 1}},
	HeldBack:   {"held", always, false, NotAsked, metrics.Counts{}},
	MissingKey: {"missing_key", always, false, MissingKey, metrics.Counts{}},
	Full:       {"on_full", ifDeny, false, Full, metrics.Counts{Full: 1}},
	Failed:     {"on_error", ifDeny, true, Failed, metrics.Counts{Errors: 1}},
	Contended:  {"on_contention", ifNotAllow, true, Contended, metrics.Counts{Contention: 1}},
	Overtaken:  {"on_contention", never, false, Overtaken, metrics.Counts{Contention: 1}},
	Silent:     {"on_unavailable", ifDeny, true, Silent, metrics.Counts{QuotaUnavailable: 1}},
	Starting:   {"starting", ifNotAllow, true, Starting, metrics.Counts{QuotaUnavailable: 1}},
	NotAsked:   {"not_asked", never, false, NotAsked, metrics.Counts{}},
}

// Each outcome has the reason and the verdict that the policy gives it, and all that asks for outcomes knows it.
func TestOutcomes(t *testing.T) {
	var denials []string
	for o := range Outcome(outcomes) {
		want, known := comesTo[o]
		require.True(t, known, "outcome %d has no row", o)
		if want.denies != never {
			denials = append(denials, want.reason)
		}
		for i, isDenied := range want.denies {
			s := &Subject{begun: begun{Rule: &Rule{Policy: &choices[i]}}, judged: judged{known: true, passNs: 7}}
			s.Record.FromFloor = true
			s.become(o, 1)
			require.Equal(t, want.reason, s.Reason(), "outcome %d", o)
			require.Equal(t, isDenied, s.denies, "%s, choice %d", want.reason, i)
			require.Equal(t, !want.knownEnds, s.known, want.reason)
			passNs := int64(7)
			if isDenied && want.knownEnds {
				passNs = 1 + failureRetryNs
			}
			require.Equal(t, passNs, s.passNs, "%s, choice %d", want.reason, i)

			s.noteOutcome()
			require.Equal(t, want.counts, s.Rule.Metrics.Counts, want.reason)
			s.Quota.From = OwnShare
			require.Equal(t, o != NotAsked, s.isByOnUnavailable(), "%s by this proxy's share", want.reason)

			s.skip(1)
			require.Equal(t, want.skipped, s.outcome, want.reason)
			require.False(t, s.known)
		}
	}
	require.ElementsMatch(t, result.DenialReasons(), denials)
}
