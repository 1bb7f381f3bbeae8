package lease_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// A request that on_unavailable decides counts as one, however often its rules are checked: a shadow rule is checked
// again once another rule has counted in its record, and an enforced one once another worker has written first.
func TestARequestThatIsDecidedAloneCountsOnce(t *testing.T) {
	const rule = `{"name":"r#","counter":"c","limits":["100/1m"],` + byUser + `,"on_unavailable":`
	for _, then := range []string{"local", "allow", "deny"} {
		for _, mode := range []string{"enforce", "shadow"} {
			second := strings.Replace(rule, `"r#"`, `"r#","mode":"`+mode+`"`, 1)
			first := strings.Replace(rule, "#", "1", 1)
			w, _ := pair(t, first+`"`+then+`"},`+strings.Replace(second, "#", "2", 1)+`"`+then+`"}`)
			w.engine.Cluster.Service.Silent = true
			var rules []*decide.Rule
			w.onDecided = func(_ uint32, v *decide.Verdict) {
				rules = []*decide.Rule{v.Subjects[0].Rule, v.Subjects[1].Rule}
			}
			for range 10 {
				w.request("a")
			}
			counts := []uint64{rules[0].Metrics.QuotaUnavailable, rules[1].Metrics.QuotaUnavailable}
			want := []uint64{10, 10}
			if then == "deny" && mode == "shadow" {
				want[1] = 0 // the first rule has denied: nothing asks the second
			}
			require.Equal(t, want, counts, "%s %s", then, mode)
		}
	}
}

// The clock is set back while the service is silent. A key without room waits from the first denial on: the next ones
// do not begin its wait anew.
func TestAShareMovesToThePresentOnce(t *testing.T) {
	w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":["1/10s"],"algorithm":"token_bucket","on_unavailable":"local"}`)
	w.engine.Cluster.Service.Silent = true
	var last *decide.Verdict
	w.onDecided = func(_ uint32, v *decide.Verdict) { last = v }
	w.request("a")
	require.True(t, last.Allowed)
	w.proxy.Clock -= hour
	w.request("a")
	require.False(t, last.Allowed)
	w.proxy.Clock += 10*second - 1
	w.request("a")
	require.EqualValues(t, 1, last.RetryNs)
	require.EqualValues(t, 1, last.Subjects[0].Rule.Metrics.ClockRebased)
	w.proxy.Clock++
	w.request("a")
	require.True(t, last.Allowed)
}

// What requests leave for the service to charge is what they have taken of the share, also if another worker writes
// between two writes of a request, and takes the last unit.
func TestARaceForTheShareIsChargedOnce(t *testing.T) {
	for _, limit := range []string{"100", "2"} {
		rules := `{"name":"r",` + byUser + `,"limits":["` + limit + `/1m"],"on_unavailable":"local"}`
		w, _ := pair(t, rules)
		other := newWorker(t, w.proxy, rules, 2)
		w.engine.Cluster.Service.Silent = true
		other.engine.Cluster.Service.Silent = true
		w.request("a")
		w.proxy.After = func(string) {
			w.proxy.After = nil
			other.request("a")
			w.proxy.Steal = 1
		}
		w.request("a")
		require.Zero(t, w.proxy.Steal)
		w.engine.Cluster.Service.Silent = false
		w.request("a")
		var m quota.Asks
		require.NoError(t, m.Decode(w.stream.Asks[0]))
		require.EqualValues(t, w.admitted()+other.admitted(), m.Asks[0].Parts[0].Uncharged, "of a limit of %s", limit)
	}
}

// The store has failed for a key, so a request takes of the proxy's share. Then another worker takes the last leased
// unit of the request's other rule. So the share gets its unit back, the request waits, and takes of the share again.
func TestARequestThatWaitsAfterTheShareIsChargedOnce(t *testing.T) {
	const rules = `{"name":"r",` + byUser + `,"missing_key":"skip","limits":["100/1m"],"on_unavailable":"local"},` +
		`{"name":"other","scope":"cluster","key":[{"header":"v"}],"missing_key":"skip","limits":["9/1m"]}`
	w, _ := pair(t, rules)
	other := newWorker(t, w.proxy, rules, 2)
	answer := func(grants ...quota.Grant) {
		m := quota.Results{Results: []quota.AskResult{{ID: w.lastID, Outcome: quota.Granted, Grants: grants}}}
		w.receive(m.Append(nil))
	}
	w.request("a v")
	answer(quota.Grant{Failed: true}, quota.Grant{Number: 1, Units: 2, ValidNs: 10 * second, Leased: true})
	require.Equal(t, 1, w.admitted())
	w.proxy.After = func(string) { // the next request has taken of the share
		w.proxy.After = nil
		w.proxy.Headers = map[string][]string{"v": {"v"}}
		require.True(t, other.engine.Decide().Allowed)
	}
	waits := w.request("a v")
	require.NotContains(t, w.verdicts, waits)
	answer(quota.Grant{Number: 2, Units: 1, ValidNs: 10 * second})
	require.True(t, w.verdicts[waits])

	w.proxy.Clock += 2 * second
	w.request("a")
	var m quota.Asks
	require.NoError(t, m.Decode(w.stream.Asks[len(w.stream.Asks)-1]))
	require.EqualValues(t, w.admitted(), m.Asks[0].Parts[0].Uncharged)
}

// The service has said nothing of a key yet. What the proxy has written of it meanwhile tells no client how it stands.
func TestOfAKeyThatWasOnlyAdmittedInSilenceNothingIsKnown(t *testing.T) {
	w, _ := pair(t, `{"name":"r",`+byUser+`,"limits":["100/1m"],"cost":{"header":"v","min":0},"on_unavailable":"local"}`)
	w.engine.Cluster.Service.Silent = true
	w.proxy.With("u", "a", "v", "1")
	require.True(t, w.engine.Decide().Allowed)
	w.proxy.With("u", "a", "v", "0")
	v := w.engine.Decide()
	require.True(t, v.Allowed)
	_, known := v.Subjects[0].View()
	require.False(t, known)
}

// When the service answers again, it counts once what was admitted in silence, however many asks read in the lease
// that it must: one of them says it.
func TestWhatWasAdmittedInSilenceIsCountedOnce(t *testing.T) {
	const rule = `{"name":"r#",` + byUser + `,"counter":"c","limits":["100/1m"],"on_unavailable":"local"`
	for lease, end := range map[string]string{"leased": `}`, "lease off": `,"lease":"off"}`} {
		for _, c := range []struct {
			name                     string
			rules, workers, requests int // requests of each worker, before the service answers
		}{
			{"two requests, one of them before the answer to the other", 1, 1, 2},
			{"two workers", 1, 2, 1},
			{"four workers and many requests", 1, 4, 5},
			{"two rules of one counter in one ask", 2, 1, 1},
		} {
			t.Run(c.name+", "+lease, func(t *testing.T) {
				rules := strings.Replace(several(c.rules, rule+end), "r0", "r", 1)
				w, s := pair(t, rules)
				workers := []*worker{w}
				for i := 1; i < c.workers; i++ {
					workers = append(workers, newWorker(t, w.proxy, rules, uint32(1+i)))
				}
				w.engine.Cluster.Service.Silent = true
				for range 10 {
					w.request("a")
				}
				require.Equal(t, 10, w.admitted())
				w.engine.Cluster.Service.Silent = false
				for range c.requests {
					for _, other := range workers {
						other.request("a")
					}
				}
				admitted := 0
				for _, other := range slices.Backward(workers) { // the first of them says it, and hears last
					other.exchange(s)
					other.request("a")
					other.exchange(s)
					admitted += other.admitted()
				}
				require.Equal(t, 10+c.workers*(c.requests+1), admitted)
				require.Equal(t, c.rules*admitted, int(s.used())-w.leased(t, "a"))
			})
		}
	}
}

// How many proxies are alive is what a worker of the proxy has heard last, also if this worker said so before.
func TestTheNumberOfProxiesIsWhatWasHeardLast(t *testing.T) {
	proxy := hosttest.New()
	rules := strings.Replace(perUser, `"limits"`, `"on_unavailable":"local","limits"`, 1)
	one, other := newWorker(t, proxy, rules, 1), newWorker(t, proxy, rules, 2)
	one.engine.Cluster.SetProxies(4)
	other.engine.Cluster.SetProxies(2)
	one.engine.Cluster.SetProxies(4)
	one.engine.Cluster.Service.Silent = true
	for range 100 {
		one.request("a")
	}
	require.Equal(t, 25, one.admitted())
}

// What was admitted in silence is told also by a later policy that blocks for longer: it counts in the same windows.
func TestALongerBlockForgetsNothingThatWasAdmittedInSilence(t *testing.T) {
	const rule = `{"name":"r",` + byUser + `,"limits":["100/1m"],"on_unavailable":"local","block":"1h"}`
	w, _ := pair(t, rule)
	w.engine.Cluster.Service.Silent = true
	for range 10 {
		w.request("a")
	}
	require.Equal(t, 10, w.admitted())
	later := newWorker(t, w.proxy, strings.Replace(rule, "1h", "2h", 1), 2)
	later.request("a")
	var m quota.Asks
	require.NoError(t, m.Decode(later.stream.Asks[0]))
	require.EqualValues(t, 10, m.Asks[0].Parts[0].Uncharged)
}
