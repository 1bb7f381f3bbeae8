package respond_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// The word for access logs has the verdict of every rule that matched, shadow
// ones too, and no key; only a verdict that is more than "allowed" is notable.
func TestWordHasEveryVerdictAndNoKey(t *testing.T) {
	p := hosttest.New()
	e := compileJSON(t, p,
		`{"name":"first","key":[{"header":"u"}],"limits":["2/1h"]},{"name":"trial","mode":"shadow","limits":["1/1h"]},
		{"name":"on error=, \"ü\"","key":[{"header":"u"}],"missing_key":"deny","limits":["9/1h"]},{"name":"nobody",
			"match":{"methods":["PUT"]},"limits":["0/1h"]}`)
	p.With("u", "secret")
	for _, want := range []string{
		"first=allowed,trial=shadow_allowed,on%20error%3D%2C%20%22%C3%BC%22=allowed",
		"first=allowed,trial=shadow_denied:limit,on%20error%3D%2C%20%22%C3%BC%22=allowed",
		"first=denied:limit,trial=shadow_skipped,on%20error%3D%2C%20%22%C3%BC%22=allowed",
	} {
		v := e.Decide()
		require.Equal(t, want, string(respond.AppendWord(nil, v)))
		require.Equal(t, strings.Contains(want, "denied"), respond.Notable(v), want)
	}
	delete(p.Headers, "u")
	v := e.Decide()
	require.Equal(t, "trial=shadow_skipped,on%20error%3D%2C%20%22%C3%BC%22=denied:missing_key",
		string(respond.AppendWord(nil, v)))
	p.Headers, p.Fail = map[string][]string{"u": {"secret"}}, "get"
	v = e.Decide()
	require.True(t, respond.Notable(v), "let through undecided")
	want := "first=allowed:on_error,trial=shadow_allowed:on_error,on%20error%3D%2C%20%22%C3%BC%22=allowed:on_error"
	require.Equal(t, want, string(respond.AppendWord(nil, v)))

	require.False(t, respond.Notable(compileJSON(t, hosttest.New(), ``).Decide()))
}

// The name of an override stands behind the rule's, in the word and in fields.
func TestNamesOfOverrides(t *testing.T) {
	p := hosttest.New()
	p.With("u", "a")
	e := compileJSON(t, p,
		`{"name":"r","algorithm":"fixed_window_per_key","key":[{"header":"u"}],"limits":["9/1h"],`+
			`"overrides":[{"name":"gold: 1","key":["a"],"limits":["1/1h"]}]}`)
	for _, c := range []struct{ user, word, limit string }{
		{"b", "r=allowed", `"r";r=8;t=3600`},
		{"a", "r:gold%3A%201=allowed", `"r:gold: 1";r=0;t=3600`},
		{"a", "r:gold%3A%201=denied:limit", `"r:gold: 1";r=0;t=3600`},
	} {
		p.With("u", c.user)
		v := e.Decide()
		require.Equal(t, c.word, string(respond.AppendWord(nil, v)))
		require.Contains(t, appendFields("ietf", v), respond.Field{"ratelimit", c.limit})
	}
}

// Whatever a rule is called, the word can be taken apart again.
func TestWordCanBeParsed(t *testing.T) {
	for _, name := range []string{
		"a", "a b", "a=b", "a,b:c", "+3", "%41", `"'\`, "日本", "a/b.c_d-e~f", "{}()<>|;&*?#[]^`!@$",
	} {
		e := compileJSON(t, hosttest.New(), fmt.Sprintf(`{"name":%q,"limits":["0/1h"]}`, name))
		word := string(respond.AppendWord(nil, e.Decide()))
		require.Regexp(t, `^[A-Za-z0-9%._~/-]+=denied:limit$`, word)
		got, err := url.PathUnescape(strings.TrimSuffix(word, "=denied:limit"))
		require.NoError(t, err)
		require.Equal(t, name, got)
	}
}

// However many rules match, a line of a log stays readable.
func TestWordIsBounded(t *testing.T) {
	var rules []string
	for i := range 500 {
		rules = append(rules, fmt.Sprintf(`{"name":"a-rule-with-number-%03d","limits":["0/1h"]}`, i))
	}
	e := compileJSON(t, hosttest.New(), strings.Join(rules, ","))
	word := string(respond.AppendWord(nil, e.Decide()))
	require.LessOrEqual(t, len(word), 4<<10+10)
	listed := strings.Split(word, ",")
	require.Equal(t, fmt.Sprint("+", 500-(len(listed)-1)), listed[len(listed)-1])
	require.Equal(t, "a-rule-with-number-000=denied:limit", listed[0])
}

// The briefs of a verdict say what its report says.
func TestBriefsAreTheReport(t *testing.T) {
	dice := rand.NewChaCha8([32]byte{7})
	rules, denied := 0, 0
	for range 300 {
		data := make([]byte, 600)
		dice.Read(data)
		in := hosttest.Tape(data)
		text := in.Rules(in.Next()%2 == 1)
		p := hosttest.New()
		p.Clock = 1_700_000_000_123_456_789
		e := compileJSON(t, p, text)
		for len(in) > 0 {
			in.Request(p, true)
			v := e.Decide()
			var report result.Result
			require.NoError(t, json.Unmarshal(respond.AppendReport(nil, v), &report))
			rest := respond.AppendBriefs(nil, v)
			for i := range report.Rules {
				want := &report.Rules[i]
				brief, after, ok := result.CutBrief(rest)
				require.True(t, ok, text)
				require.Equal(t, want.Rule, string(brief.Rule))
				require.Equal(t, want.Allowed, brief.Allowed)
				require.Equal(t, want.Mode == "shadow", brief.Shadow)
				require.Equal(t, want.Reason, string(brief.Reason))
				parts := brief.KeyParts()
				require.Len(t, parts, len(want.Key))
				for j, part := range parts {
					require.Equal(t, want.Key[j] == nil, part == nil)
					if part != nil && utf8.ValidString(*part) {
						require.Equal(t, *want.Key[j], *part)
					}
				}
				if rules++; !brief.Allowed {
					denied++
				}
				rest = after
			}
			require.Empty(t, rest)
		}
	}
	require.Greater(t, rules, 1000)
	require.Greater(t, denied, 100)
}
