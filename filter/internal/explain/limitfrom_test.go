package explain

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// What says a limit and is left open is named: the default stands in for it, and denies
// nothing for certain.
func TestExplainALimitThatIsNotDescribed(t *testing.T) {
	said := `"limits":[{"requests":{"jwt":{"provider":"p","claim":"rpm"},"default":0,"max":9},"per":"1h"}]`
	for _, c := range []struct{ rules, allowed, deniedBy, dependsOn string }{
		{`{"name":"r",` + said + `}`, "", "", "jwt claim rpm"},
		{`{"name":"r","mode":"shadow",` + said + `}`, "true", "", ""},
		{`{"name":"r",` + said + `},{"name":"s","limits":["0/1h"]}`, "false", "s", "jwt claim rpm"},
		{`{"name":"r","key":[{"header":"x-a"}],` + said + `,"overrides":[{"key":["1"],"limits":["5/1h"]}]}`, "true", "", ""},
		{`{"name":"r","limits":[{"requests":{"header":"x-b","trusted":true,"default":0,"max":9},"per":"1h"}]}`, "false", "r", ""},
		{`{"name":"r","limits":[{"requests":{"header":"x-a","trusted":true,"default":0,"max":9},"per":"1h"}]}`, "true", "", ""},
	} {
		p := hosttest.New()
		p.With("x-a", "1")
		var x answer.Explanation
		require.NoError(t, json.Unmarshal(Explain(nil, compileJSON(t, p, c.rules), p, described(p)), &x), c.rules)
		allowed := ""
		if x.Allowed != nil {
			allowed = strconv.FormatBool(*x.Allowed)
		}
		require.Equal(t, []string{c.allowed, c.deniedBy, c.dependsOn}, []string{allowed, x.DeniedBy, strings.Join(x.DependsOn, ",")}, c.rules)
		require.Equal(t, answer.Matches, x.Rules[0].Outcome, c.rules)
	}
	p := hosttest.New()
	p.Attributes = map[string]string{"metadata": hosttest.Metadata(t, `{"envoy.filters.http.jwt_authn":{"p":{"rpm":7}}}`)}
	require.Contains(t, string(Explain(nil, compileJSON(t, p, `{"name":"r",`+said+`}`), p, described(p))), `"limit":7,"limit_from":"jwt:p:rpm","per_ns"`)
}
