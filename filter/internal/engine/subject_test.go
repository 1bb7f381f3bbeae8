package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What the filter asks the quota service for a request's key is what anybody finds who
// names that key by its parts, as sluice counters does: the key, its limits and whether
// they are enforced.
func TestTheFilterAsksForTheKeyThatCountersName(t *testing.T) {
	dice := rand.New(rand.NewPCG(7, 1))
	pick := func(from ...string) string { return from[dice.IntN(len(from))] }
	window := func() string {
		return pick(`"per":"1m"`, `"per":"1m","jitter":40`, `"per":"1m","algorithm":"token_bucket","burst":90`,
			`"per":"1h","algorithm":"sliding_window_counter"`)
	}
	parts := []string{
		`{"header":"u"}`, `"host"`, `"method"`, `"client_ip"`, `{"client_ip":{"v4_prefix":24}}`, `{"query":"q"}`, `{"cookie":"u"}`,
		`{"path":{"segment":1}}`, `{"first_of":[{"header":"none"},{"header":"u"},{"query":"q"}]}`,
	}
	asked, overridden := 0, 0
	for range 400 {
		var key, patterns []string
		for range 1 + dice.IntN(3) {
			key = append(key, parts[dice.IntN(len(parts))])
			patterns = append(patterns, fmt.Sprintf("%q", pick("*", "*", "*a*", "~.*[ab].*", "GET", "a*")))
		}
		for i := range patterns {
			patterns[i] = strings.Replace(patterns[i], "*a*", "*a", 1)
		}
		limits := window()
		more := fmt.Sprintf(`,"overrides":[{"key":[%s],"limits":[{"requests":77,%s}]},{"key":[%s],"unlimited":true}]`,
			strings.Join(patterns, ","), limits, strings.Repeat(`"b*",`, len(patterns)-1)+`"b*"`)
		p := hosttest.Policy(t, fmt.Sprintf(`{"name":"r","counter":%q,"scope":"cluster","enforce_percent":%d,"key":[%s],"limits":[{"requests":50,%s}]%s}`,
			pick("r", "other"), dice.IntN(101), strings.Join(key, ","), limits, pick("", more, more)))
		host := hosttest.New()
		host.Clock = 1_700_000_000_123_456_789
		host.With("u", pick("a", "b", "bb", "", "é"), "cookie", "u="+pick("a", "b"), ":authority", pick("a", "Shop.example:443", "b."),
			":path", pick("/a/b?q=a", "/b;x?q=%62", "/c"))
		e := New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
		v := e.Decide()
		wants := e.Leases.AppendParts(nil, v)
		for _, a := range v.Subjects {
			var named policy.Subject
			var texts []string
			for i := range a.Key.Parts {
				texts = append(texts, a.Key.Parts[i].Whole())
			}
			require.NoError(t, p.Rules[0].ParseKey(&named.Key, texts))
			of := p.Subjects(&p.Rules[0])
			of.Find(&named)
			require.Equal(t, []any{a.Override, a.Shadow, a.Unlimited, a.Windows}, []any{named.Override, named.Shadow, named.Unlimited, named.Windows})
			if overridden += a.Override + 1; a.Unlimited {
				continue
			}
			require.Len(t, wants, 1)
			require.Equal(t, of.QuotaKey(&named), wants[0].Key)
			want := of.Definition(&named)
			want.ID = wants[0].Definition
			require.Equal(t, want, e.Leases.Definitions[want.ID])
			asked++
		}
	}
	t.Logf("%d keys of random policies asked for by the filter as counters name them", asked)
	require.Greater(t, asked, 100)
	require.Greater(t, overridden, 30)
}

// A key that lacks a part is named as top prints it, and so is one whose client sends
// what stands for that.
func TestAKeyIsNamedAsTopPrintsIt(t *testing.T) {
	p := hosttest.Policy(t, `{"name":"r","missing_key":"share","algorithm":"fixed_window_per_key","limits":["1/1h"],`+
		`"key":[{"header":"t"},{"first_of":[{"header":"u"},{"query":"q"}]}]}`)
	host := hosttest.New()
	e := New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	for _, headers := range [][]string{
		{"u", "zoe"}, {"t", "", "u", "zoe"}, {"t", "(missing)", "u", "zoe"}, {"t", "=(missing)", "u", "zoe"}, {"t", "=", "u", "zoe"}, {"t", "(missing)"}, {},
	} {
		host.With(headers...)
		require.True(t, e.Decide().Allowed)
		v := e.Decide()
		require.False(t, v.Allowed)
		var key []string
		for _, part := range v.Subjects[0].Key.Parts {
			text := part.Whole()
			if !part.Present {
				key = append(key, policy.PartText(nil))
			} else {
				key = append(key, policy.PartText(&text))
			}
		}
		reset, err := e.Operate(Operation{Name: "reset", Rule: "r", Key: key})
		require.NoError(t, err)
		require.Contains(t, string(reset), `{"value":1,`, key)
		require.True(t, e.Decide().Allowed, key)
	}
	e = New(hosttest.Policy(t, `{"name":"r","key":[{"header":"u"}],"limits":["1/1h"]}`), host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
	_, err := e.Operate(Operation{Name: "reset", Rule: "r", Key: []string{"(missing)"}})
	require.EqualError(t, err, `part 0 of the key of rule "r" is (missing), but only missing_key: share counts such a key: `+
		`write =(missing) if the text is meant`)
}
