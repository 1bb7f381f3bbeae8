package decide

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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

// comesTo is what each finding comes to.
var comesTo = map[Found]struct {
	reason    string
	denies    byChoice
	knownEnds bool
	skipped   fate           // what a shadow rule of a denied request makes of it
	counts    metrics.Counts // if the key starts from a floor
}{
	HasRoom:   {"", never, false, notAsked, metrics.Counts{}},
	Pending:   {"not_asked", never, false, notAsked, metrics.Counts{}},
	Denied:    {"limit", always, false, notAsked, metrics.Counts{FloorDenied: 1}},
	Blocked:   {"blocked", always, false, notAsked, metrics.Counts{FloorDenied: 1}},
	HeldBack:  {"held", always, false, notAsked, metrics.Counts{}},
	Full:      {"on_full", ifDeny, false, asFound, metrics.Counts{Full: 1}},
	Failed:    {"on_error", ifDeny, true, asFound, metrics.Counts{Errors: 1}},
	Contended: {"on_contention", ifNotAllow, true, asFound, metrics.Counts{Contention: 1}},
	Silent:    {"on_unavailable", ifDeny, true, asFound, metrics.Counts{QuotaUnavailable: 1}},
	Starting:  {"starting", ifNotAllow, true, asFound, metrics.Counts{QuotaUnavailable: 1}},
}

// Each finding has the reason and the verdict that the policy gives it, and all that asks for findings knows it.
func TestOutcomes(t *testing.T) {
	denials := []string{result.ReasonMissingKey}
	for found := range Found(allFound) {
		want, known := comesTo[found]
		require.True(t, known, "finding %d has no row", found)
		if want.denies != never {
			denials = append(denials, want.reason)
		}
		for i, isDenied := range want.denies {
			s := &Subject{Rule: &Rule{Policy: &choices[i]}}
			s.Record.FromFloor = true
			s.judge(Finding{found, true, 7}, 1)
			require.Equal(t, want.reason, s.Reason(), "finding %d", found)
			require.Equal(t, isDenied, s.Denies(), "%s, choice %d", want.reason, i)
			require.Equal(t, !want.knownEnds, s.finding.Known, want.reason)
			passNs := int64(7)
			if want.knownEnds {
				passNs = 1 + failureRetryNs
			}
			require.Equal(t, passNs, s.finding.PassNs, "%s, choice %d", want.reason, i)

			s.noteOutcome()
			require.Equal(t, want.counts, s.Rule.Metrics.Counts, want.reason)
			s.Cluster.From = cluster.OwnShare
			require.True(t, s.isByOnUnavailable(), "%s by this proxy's share", want.reason)

			s.skip()
			require.Equal(t, want.skipped, s.fate, want.reason)
			require.False(t, s.finding.Known)
		}
	}
	require.ElementsMatch(t, result.DenialReasons(), denials)
}

// What Decide makes of a subject has a reason of its own, and then its rule does not deny. Only one that is not asked
// is never decided by on_unavailable.
func TestFates(t *testing.T) {
	for of, want := range map[fate]struct {
		found  Found
		reason string
		counts metrics.Counts
	}{
		taken:     {HasRoom, "", metrics.Counts{}},
		overtaken: {Pending, "on_contention", metrics.Counts{Contention: 1}},
		notAsked:  {Denied, "not_asked", metrics.Counts{}},
	} {
		s := &Subject{Rule: &Rule{Policy: &choices[1]}}
		s.Record.FromFloor = true
		s.judge(Finding{Found: want.found}, 1)
		if of == notAsked {
			s.skip()
		}
		s.fate = of
		require.Equal(t, want.reason, s.Reason())
		require.False(t, s.Denies(), want.reason)
		require.False(t, s.IsPending(), want.reason)
		s.noteOutcome()
		require.Equal(t, want.counts, s.Rule.Metrics.Counts, want.reason)
		s.Cluster.From = cluster.OwnShare
		require.Equal(t, of != notAsked, s.isByOnUnavailable(), want.reason)
	}
}

// A rule denies a request that lacks its key, also where it is skipped.
func TestARequestThatLacksItsKey(t *testing.T) {
	v := begin(t, one, &purse{left: 9})
	s := v.Add(v.Subjects[0].Rule, Reading{Cost: 2, LacksKey: true})
	for range 2 {
		require.Equal(t, result.ReasonMissingKey, s.Reason())
		require.True(t, s.Denies())
		require.Equal(t, limit.Never, s.finding.PassNs)
		s.noteOutcome()
		require.Equal(t, metrics.Counts{}, s.Rule.Metrics.Counts)
		s.skip()
	}
}
