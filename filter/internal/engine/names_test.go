package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// An override that raises a limit holds for a host or path only if it holds however
// servers may read it; one that lowers a limit holds if it does in one way.
func TestOverridesOfOtherSpellings(t *testing.T) {
	for _, c := range []struct {
		key, pattern string
		headers      []string
		raised, low  bool
	}{
		{`"host"`, `api.example.com`, []string{":authority", "api.example.com:80"}, true, true},
		{`"host"`, `api.example.com`, []string{":authority", "api.example.com:x"}, false, true},
		{`"host"`, `*.shop.example`, []string{":authority", "x:.shop.example"}, false, true},
		{`"path"`, `/v1/*`, []string{":path", "/v1/a;b"}, true, true},
		{`"path"`, `/v1/*`, []string{":path", "/v1;b/a"}, false, true},
		{`"path"`, `/v1;b/*`, []string{":path", "/v1;b/a"}, false, true},
		{`{"path":{"segment":1}}`, `v1`, []string{":path", "/v1/a;b"}, true, true},
		{`{"path":{"segment":1}}`, `v1`, []string{":path", "/;b/v1"}, false, true},
		{`{"first_of":[{"header":"h"},{"path":{"segment":1}}]}`, `path:1=v1`, []string{":path", "/;b/v1"}, false, true},
		{`{"first_of":[{"header":"h"},{"path":{"segment":1}}]}`, `header:h=v1`, []string{":path", "/;b/v2", "h", "v1"}, true, true},
		{`{"header":"h"},"path"`, `v1","*`, []string{":path", "/;b/v2", "h", "v1"}, true, true},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		for limit, want := range map[string]bool{"7/1h": c.raised, "1/1h": c.low} {
			e := compileJSON(t, p, `{"name":"r","key":[`+c.key+`],"limits":["3/1h"],"overrides":[{"key":["`+c.pattern+`"],"limits":["`+limit+`"]}]}`)
			require.Equal(t, want, e.Decide().Subjects[0].Override >= 0, "%s %s %v", c.pattern, limit, c.headers)
		}
	}
	// What one request's path left open says nothing of the next.
	p := hosttest.New()
	e := compileJSON(t, p, `{"name":"r","key":["path"],"limits":["3/1h"],"overrides":[{"key":["/v1"],"unlimited":true}]}`)
	p.With(":path", "/;/v1")
	require.Negative(t, e.Decide().Subjects[0].Override)
	p.With(":path", "/v1")
	require.Zero(t, e.Decide().Subjects[0].Override)
}
