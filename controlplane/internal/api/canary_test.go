package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/rollouts"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// counting is a proxy that says what it has counted.
type counting struct {
	allowed, denied, starts atomic.Uint64
	refuses                 atomic.Bool
	asked                   atomic.Pointer[func()] // called meanwhile
}

type canaryFixture struct {
	*managedFixture
	proxies map[string]*counting
	chosen  string // the one that is in each canary of a small share
	at      time.Time
}

func newCanaryFixture(t *testing.T) *canaryFixture {
	t.Helper()
	f := &canaryFixture{managedFixture: newManagedFixture(t), proxies: map[string]*counting{}, at: time.Now()}
	f.json("POST", "/v1/policies", managed, 201, &Applied{})
	for i := range 3 {
		p, id := &counting{}, fmt.Sprintf("edge-%d", i)
		p.starts.Store(5)
		f.proxies[id] = p
		at := listenerAt(t, func(w http.ResponseWriter, _ *http.Request) {
			if meanwhile := p.asked.Load(); meanwhile != nil {
				(*meanwhile)()
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"rules":[{"rule":"per-user","metrics":{"allowed":%d,"denied":%d}}],"vm_starts":%d}`,
				p.allowed.Load(), p.denied.Load(), p.starts.Load())
		})
		f.proxy(id, func(number int) bool { return number == 1 || !p.refuses.Load() }, at)
	}
	f.eventuallyRun(func(uint64) bool { return true }, 3) // it chooses among those that are connected
	only := f.xds.Ledger().Choose("default", 0.01)
	require.Len(t, only, 1)
	f.chosen = only[0]
	return f
}

// begin applies a canary for one proxy, and waits until that has answered.
func (f *canaryFixture) begin(query string) uint64 {
	f.t.Helper()
	var a Applied
	f.json("POST", "/v1/policies?canary=0.01%25"+query, managed+"# new\n", 201, &a)
	require.Equal(f.t, []string{f.chosen}, a.Rollout.Except)
	if !f.proxies[f.chosen].refuses.Load() {
		f.eventuallyRun(func(n uint64) bool { return n == a.Number }, 1)
	}
	return a.Number
}

// eventuallyRun waits until that many proxies run such a revision, and are settled.
func (f *canaryFixture) eventuallyRun(which func(uint64) bool, want int) {
	f.t.Helper()
	f.eventually(func(list []xds.ProxyStatus) bool {
		isOther := func(p xds.ProxyStatus) bool { return p.Runs == 0 || p.Runs != p.Offered || !which(p.Runs) }
		return want == len(slices.DeleteFunc(list, isOther))
	})
}

// look lets time pass and the server look. Each proxy has decided so many requests then.
func (f *canaryFixture) look(after time.Duration, each, deniedThere, deniedElsewhere uint64) *rollouts.Status {
	f.t.Helper()
	for id, p := range f.proxies {
		denied := deniedElsewhere
		if id == f.chosen {
			denied = deniedThere
		}
		p.denied.Add(denied)
		p.allowed.Add(each - denied)
	}
	f.at = f.at.Add(after)
	require.NoError(f.t, f.server.rollouts.Look(f.t.Context(), "default", f.at))
	return f.server.rollouts.Status("default", f.at)
}

func (f *canaryFixture) state(number uint64) store.RolloutState {
	f.t.Helper()
	r, err := f.store.Get(f.t.Context(), number)
	require.NoError(f.t, err)
	return r.Rollout.State
}

func TestCanaryIsPromotedByItself(t *testing.T) {
	f := newCanaryFixture(t)
	number := f.begin("&promote_after=1m")
	st := f.look(0, 0, 0, 0)
	require.Equal(t, []int{1, 1}, []int{st.Connected, st.Runs})
	ends := f.at.Add(time.Minute).UTC().Format(time.TimeOnly + "Z")
	few := "waits: no rule has decided 100 requests in the canary yet"
	require.Equal(t, "will be promoted at "+ends+" or later, "+few, st.Says)
	f.as("", "POST /v1/policies", managed, 409, fmt.Sprintf(
		"revision %d of policy default is a canary: end that first, by sluice promote or sluice abort", number))
	f.as("", "POST /v1/rollback/1", "", 409, "is a canary")
	f.as("", "GET /metrics", "", 200, "\nsluice_canaries 1\n", "\nsluice_canaries_stalled 0\n")

	st = f.look(30*time.Second, 80, 8, 8)
	seen := "per-user denies 10.0 % of 80 requests in the canary, 10.0 % of 160 on other proxies"
	require.Equal(t, seen, st.Seen[0].String())
	st = f.look(30*time.Second, 0, 0, 0)
	require.Equal(t, few, st.Says)
	require.Equal(t, store.Canary, f.state(number))
	require.Nil(t, f.look(5*time.Second, 40, 4, 4))
	require.Equal(t, store.Promoted, f.state(number))
	f.eventuallyRun(func(n uint64) bool { return n == number }, 3)
	list, err := f.store.Audit(t.Context(), "default", 2, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"promote", "sluice serve", "by itself after 1m0s"},
		[]string{list[0].Action, list[0].Who, list[0].Text})
	require.Contains(t, list[1].Text, "canary of 0.01%; ")
}

func TestCanaryStalls(t *testing.T) {
	for name, tc := range map[string]struct {
		break_ func(f *canaryFixture) // before the canary begins
		then   func(f *canaryFixture)
		why    string
	}{
		"denies too much": {
			nil, func(f *canaryFixture) { f.look(time.Minute, 200, 30, 2) },
			"per-user denies 15.0 % of 200 requests in the canary, 1.0 % of 400 on other proxies",
		},
		"refused": {
			func(f *canaryFixture) { f.proxies[f.chosen].refuses.Store(true) }, func(*canaryFixture) {}, "refused by %s",
		},
		"crashed": {nil, func(f *canaryFixture) {
			f.look(2*time.Second, 0, 0, 0)
			f.proxies[f.chosen].starts.Add(1)
			f.look(15*time.Second, 0, 0, 0)
		}, "the filter of %s has crashed, or the proxy was restarted"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCanaryFixture(t)
			if tc.break_ != nil {
				tc.break_(f)
			}
			number := f.begin("&promote_after=1m&max_denied=10%25")
			hasReplied := func() bool { _, c := f.xds.Ledger().Canary("default"); return c.Runs+len(c.Refused) == 1 }
			require.Eventually(t, hasReplied, 2*time.Minute, time.Millisecond)
			f.look(0, 0, 0, 0)
			tc.then(f)
			st := f.server.rollouts.Status("default", f.at)
			why := strings.ReplaceAll(tc.why, "%s", f.chosen)
			require.Equal(t, "stalled, waits for promote or abort: "+why, st.Says)
			f.as("", "GET /metrics", "", 200, "\nsluice_canaries 0\n", "\nsluice_canaries_stalled 1\n")
			require.Equal(t, store.Stalled, f.state(number))
			f.look(time.Hour, 1000, 10, 10)
			require.Equal(t, store.Stalled, f.state(number), "it stays so")
			f.as("", "POST /v1/policies", managed, 409)
			var a Applied
			f.json("POST", "/v1/abort", "", 200, &a)
			require.Equal(t, uint64(1), a.Number)
			require.Equal(t, store.Aborted, f.state(number))
			var status Status
			f.json("GET", "/v1/status", "", 200, &status)
			require.Nil(t, status.Policies[0].Aborted, "who aborted it knows")
			f.proxies[f.chosen].refuses.Store(false)
			f.eventuallyRun(func(n uint64) bool { return n == 1 }, 3)
			f.as("", "POST /v1/abort", "", 409, "there is no canary of policy default")
			f.json("POST", "/v1/policies", managed, 201, &a)
			require.Equal(t, []uint64{number + 1, 1}, []uint64{a.Number, a.Replaces}, "what was aborted is not what it replaces")
		})
	}
}

// A canary is judged from 100 requests on, whether or not it is promoted by itself, and not only when that is due.
func TestCanaryIsJudgedWhileItRuns(t *testing.T) {
	for _, query := range []string{"", "&promote_after=1h"} {
		f := newCanaryFixture(t)
		number := f.begin(query)
		f.look(0, 0, 0, 0)
		st := f.look(2*time.Second, 90, 72, 0)
		require.Contains(t, st.Says, "no rule has decided 100 requests in the canary yet")
		require.Equal(t, store.Canary, f.state(number))
		st = f.look(2*time.Second, 10, 8, 0)
		require.Equal(t, "stalled, waits for promote or abort: "+
			"per-user denies 80.0 % of 100 requests in the canary, 0.0 % of 200 on other proxies", st.Says)
		require.Equal(t, store.Stalled, f.state(number))
		f.as("", "GET /metrics", "", 200, "\nsluice_canaries 0\n", "\nsluice_canaries_stalled 1\n")
	}
}

// With abort_on_denied the other proxies' revision is back without anybody's word, also where a crash has the canary
// stalled before. What else would make it stall aborts nothing.
func TestCanaryIsAbortedByItself(t *testing.T) {
	f := newCanaryFixture(t)
	number := f.begin("&abort_on_denied=true")
	f.look(0, 0, 0, 0)
	require.Equal(t, "waits for promote or abort", f.look(2*time.Second, 100, 0, 0).Says)
	f.proxies[f.chosen].starts.Add(1)
	require.Contains(t, f.look(2*time.Second, 40, 0, 0).Says, "has crashed")
	require.Equal(t, store.Stalled, f.state(number))
	require.Nil(t, f.look(2*time.Second, 100, 80, 1))
	require.Equal(t, store.Aborted, f.state(number))
	f.eventuallyRun(func(n uint64) bool { return n == 1 }, 3)
	list, err := f.store.Audit(t.Context(), "default", 1, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"abort", "sluice serve"}, []string{list[0].Action, list[0].Who})
	why := "per-user denies 33.3 % of 240 requests in the canary, 0.4 % of 480 on other proxies"
	require.Equal(t, why, list[0].Text)
	var st Status
	f.json("GET", "/v1/status", "", 200, &st)
	require.Equal(t, number, st.Policies[0].Aborted.Number)
	require.Equal(t, why, st.Policies[0].Aborted.Rollout.Why)
	f.json("POST", "/v1/policies", managed, 201, &Applied{})
	st = Status{}
	f.json("GET", "/v1/status", "", 200, &st)
	require.Nil(t, st.Policies[0].Aborted)
	f.as("", "POST /v1/policies?canary=5%25&abort_on_denied=maybe", managed, 400, "is neither true nor false")
}

// hearOfMarks has serve read the marks anew, as when another control plane set some.
func (f *canaryFixture) hearOfMarks() {
	f.t.Helper()
	_, last := f.xds.Ledger().Takers()
	_, err := f.store.Append(f.t.Context(), store.Change{Last: last})
	require.NoError(f.t, err)
	require.NoError(f.t, f.xds.Refresh(f.t.Context()))
}

// A refusal that comes while the counts are read counts, before this serve knows of it, too.
func TestCanaryIsRefusedMeanwhile(t *testing.T) {
	for _, isKnown := range []bool{false, true} {
		t.Run(fmt.Sprintf("known %v", isKnown), func(t *testing.T) {
			f := newCanaryFixture(t)
			number := f.begin("&promote_after=1m")
			f.look(0, 0, 0, 0)
			f.look(30*time.Second, 200, 2, 2)
			refuse := func() {
				require.NoError(t, f.store.SaveReply(t.Context(), store.Reply{Node: "another", Revision: number, Text: "no"}))
				if isKnown {
					f.hearOfMarks()
				}
			}
			f.proxies[f.chosen].asked.Store(&refuse)
			f.look(time.Minute, 200, 2, 2)
			require.Equal(t, map[bool]store.RolloutState{true: store.Stalled, false: store.Canary}[isKnown], f.state(number))
			f.proxies[f.chosen].asked.Store(nil)
			f.hearOfMarks()
			f.look(time.Minute, 0, 0, 0)
			require.Equal(t, store.Stalled, f.state(number))
		})
	}
}

// Where something cannot be read, a canary says so and waits.
func TestCanaryThatCannotBeJudged(t *testing.T) {
	f := newCanaryFixture(t)
	number := f.begin("&promote_after=1s")
	f.look(0, 0, 0, 0)
	f.proxies[f.chosen].starts.Store(0)
	require.Equal(t, "waits: "+f.chosen+" does not tell whether its filter has crashed: that is too old",
		f.look(time.Minute, 900, 0, 0).Says)
	f.server.Fleet = nil
	require.Equal(t, "waits: serve has no management token: start it with --manage-token-file",
		f.look(time.Minute, 900, 0, 0).Says)
	f.proxies[f.chosen].starts.Store(5)
	require.Equal(t, store.Canary, f.state(number))
	var a Applied
	f.json("POST", "/v1/promote", "", 200, &a)
	require.Equal(t, number, a.Number)
	f.eventuallyRun(func(n uint64) bool { return n == number }, 3)
	f.begin("")
	require.Equal(t, "waits for promote or abort; "+
		"serve has no management token: start it with --manage-token-file", f.look(0, 0, 0, 0).Says)
}

// apply says at once what a canary lacks to end by itself.
func TestCanaryThatNothingWillJudge(t *testing.T) {
	const blind = "what the canary denies is not known, so it will be neither promoted nor aborted by itself: "
	const noToken, noManage = "serve has no management token: start it with --manage-token-file",
		"the policy has no manage: add it, and give the proxies a management listener"
	for _, tc := range []struct {
		query, policy string
		hasToken      bool
		want          []string
	}{
		{"&promote_after=1h", managed, true, nil},
		{"&promote_after=1h", managed, false, []string{blind + noToken}},
		{"&abort_on_denied=true", managed, false, []string{blind + noToken}},
		{"&abort_on_denied=true", good, true, []string{blind + noManage}},
		{"", good, false, nil},
	} {
		f := newManagedFixture(t)
		f.json("POST", "/v1/policies", tc.policy, 201, &Applied{})
		if !tc.hasToken {
			f.server.Fleet = nil
		}
		var a Applied
		f.json("POST", "/v1/policies?canary=10%25"+tc.query, tc.policy+"# new\n", 201, &a)
		require.Equal(t, tc.want, a.ProxyWarnings, tc)
	}
}

// What else is refused is in the script policies.txtar.
func TestCanaryIsRefused(t *testing.T) {
	f := newFixture(t, "")
	for _, share := range []string{"101%25", "NaN%25"} {
		f.as("", "POST /v1/policies?canary="+share, good, 400, "is not a share above 0% and up to 100%")
	}
	f.as("", "POST /v1/policies?canary=5%25", good, 409, "policy default has no revision yet")
	f.as("", "POST /v1/policies", named("edge", "edge-*"), 201)
	f.as("", "POST /v1/policies?canary=5%25", named("edge", "edge-1"), 409,
		"cannot change which proxies policy edge is for")
	f.as("", "POST /v1/policies?canary=5%25", named("edge", "edge-*"), 201)
	f.as("", "POST /v1/policies", good, 201)
	f.as("", "POST /v1/abort", "", 409)
	f.as("", "POST /v1/abort?policy=edge", "", 200)
}
