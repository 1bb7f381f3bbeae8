package explain

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	deny   = `"missing_key":"deny","limits":["9/1h"]}`
	said   = `"limits":[{"requests":{"jwt":{"provider":"p","claim":"rpm"},"default":0,"max":9},"per":"1h"}]`
	costly = `"cost":[{"match":{"client_ips":["10.0.0.0/8"]},"cost":5}],"limits":["9/1h"]`
)

// partlyDescribed are rules for a request that has no client address, route and token described.
var partlyDescribed = []struct{ rules, allowed, deniedBy, dependsOn string }{
	{
		rules: `{"name":"r","key":[{"property":["request","url_path"]},{"property":["request","query"]},` +
			`{"property":["request","path"]}],` + deny,
		allowed: "true",
	},
	{
		rules: `{"name":"r","key":[{"property":["request","method"]},{"property":["request","host"]},` +
			`{"property":["request","headers","x-a"]}],` + deny,
		allowed: "true",
	},
	{`{"name":"r","key":[{"property":["request","useragent"]}],` + deny, "false", "r", ""}, // there is none
	{`{"name":"r","key":["host",{"property":["connection","id"]}],` + deny, "", "", "property:connection.id"},
	{`{"name":"r","key":[{"property":["request","id"]}],` + deny, "true", "", ""},
	{`{"name":"r","key":[{"property":["request","scheme"]}],` + deny, "", "", "property:request.scheme"},
	{`{"name":"r","key":[{"property":["source","address"]}],` + deny, "", "", "property:source.address"}, // with its port
	{`{"name":"r","key":["route"],"limits":["9/1h"]}`, "", "", "route"},
	{`{"name":"r","key":["route"],"missing_key":"share","limits":["0/1h"]}`, "", "", "route"},
	{`{"name":"r","key":[{"first_of":["route","host"]}],` + deny, "", "", "route"},
	{`{"name":"r","key":[{"first_of":["host","route"]}],` + deny, "true", "", ""},
	{`{"name":"r","key":["route",{"header":"x-none"}],` + deny, "false", "r", ""},
	{`{"name":"r","key":["route",{"header":"x-none"}],"limits":["0/1h"]}`, "true", "", ""},
	{`{"name":"r","mode":"shadow","key":["route"],` + deny, "true", "", ""},
	{`{"name":"r","mode":"off","key":["route"],` + deny, "true", "", ""},
	{`{"name":"r","match":{"methods":["PUT"]},"key":["route"],` + deny, "true", "", ""},
	{`{"name":"r","key":["route"],` + deny + `,{"name":"s","limits":["0/1h"]}`, "false", "s", "route"},
	{`{"name":"r","key":["client_ip"],"limits":["9/1h"]}`, "", "", "client_ip"},
	{`{"name":"r","key":["client_ip"],"mode":"shadow",` + deny, "true", "", ""},
	{`{"name":"r","key":["client_ip"],"missing_key":"share","limits":["9/1h"]}`, "", "", "client_ip"},
	{`{"name":"r","key":["client_ip",{"header":"none"}],"limits":["9/1h"]}`, "true", "", ""},
	{`{"name":"r","key":["client_ip",{"header":"none"}],` + deny, "false", "r", ""},
	{`{"name":"r","key":["client_ip",{"header":"none"}],"missing_key":"share","limits":["9/1h"]}`, "", "", "client_ip"},
	{`{"name":"r","key":[{"first_of":[{"header":"x-a"},"client_ip"]}],` + deny, "true", "", ""},
	{`{"name":"r","key":[{"first_of":["client_ip",{"header":"x-a"}]}],` + deny, "", "", "client_ip"},
	{`{"name":"r","match":{"client_ips":["10.0.0.0/8"]},"limits":["9/1h"]}`, "", "", "client_ip"},
	{`{"name":"r","match":{"client_ips":["10.0.0.0/8"]},"key":["client_ip","route"],` + deny, "", "", "client_ip"},
	{`{"name":"r","match":{"methods":["PUT"],"client_ips":["10.0.0.0/8"]},"limits":["9/1h"]}`, "true", "", ""},
	{`{"name":"r","exempt":[{"client_ips":["10.0.0.0/8"]}],"limits":["9/1h"]}`, "", "", "client_ip"},
	{`{"name":"r","exempt":[{"client_ips":["10.0.0.0/8"]},{"methods":["GET"]}],"limits":["0/1h"]}`, "true", "", ""},
	{
		rules:     `{"name":"r","exempt":[{"client_ips":["10.0.0.0/8"]}],"key":["client_ip","route"],` + deny,
		dependsOn: "client_ip,route",
	},
	{`{"name":"r","limits":["9/1h"]}],"exempt":[{"client_ips":["10.0.0.0/8"]}`, "", "", "client_ip"},
	{`{"name":"r",` + said + `}`, "", "", "jwt claim rpm"},
	{`{"name":"r","mode":"shadow",` + said + `}`, "true", "", ""},
	{`{"name":"r",` + said + `},{"name":"s","limits":["0/1h"]}`, "false", "s", "jwt claim rpm"},
	{`{"name":"r","key":[{"header":"x-a"}],` + said + `,"overrides":[{"key":["1"],"limits":["5/1h"]}]}`, "true", "", ""},
	{`{"name":"r",` + costly + `}`, "", "", "client_ip"},
	{`{"name":"r","mode":"shadow",` + costly + `}`, "true", "", ""},
	{`{"name":"r",` + costly + `},{"name":"s","limits":["0/1h"]}`, "false", "s", "client_ip"},
	{`{"name":"r","cost":[{"match":{"methods":["PUT"],"client_ips":["10.0.0.0/8"]},"cost":5}],` + deny, "true", "", ""},
	{
		rules:    `{"name":"r","limits":[{"requests":{"header":"x-b","trusted":true,"default":0,"max":9},"per":"1h"}]}`,
		allowed:  "false",
		deniedBy: "r",
	},
	{
		rules:   `{"name":"r","limits":[{"requests":{"header":"x-a","trusted":true,"default":0,"max":9},"per":"1h"}]}`,
		allowed: "true",
	},
}

// What follows from the description is known. What the proxy alone knows is named, and the
// verdict depends on it unless a rule that is known denies. For a limit the default stands in,
// for a cost that of a request without the address; both deny nothing for certain.
func TestExplainWhatIsNotDescribed(t *testing.T) {
	for _, c := range partlyDescribed {
		p := hosttest.New()
		p.With("x-a", "1", "x-request-id", "7")
		r := described(p)
		r.Path, r.ClientAddress = "/x?y=1", ""
		x := explain(t, compileJSON(t, p, c.rules), p, r)
		allowed := ""
		if x.Allowed != nil {
			allowed = strconv.FormatBool(*x.Allowed)
		}
		require.Equal(t, c.allowed, allowed, c.rules)
		require.Equal(t, c.deniedBy, x.DeniedBy, c.rules)
		require.Equal(t, c.dependsOn, strings.Join(x.DependsOn, ","), c.rules)
		hasStandIn := strings.Contains(c.rules, `"default"`) || strings.Contains(c.rules, `"cost"`)
		notKnown := (c.dependsOn != "" && allowed != "true" || strings.Contains(c.rules, `"shadow"`)) && !hasStandIn
		require.Equal(t, notKnown, x.Rules[0].Outcome == result.NotKnown, c.rules)
		r.Attributes = map[string]string{"source.address": "192.0.2.7:4711", "request.scheme": "https"}
		x = explain(t, compileJSON(t, p, c.rules), p, r)
		require.NotContains(t, x.DependsOn, "client_ip", c.rules)
		require.NotContains(t, x.DependsOn, "property:source.address", c.rules)
	}
	p := hosttest.New()
	p.Attributes = map[string]string{"metadata": hosttest.Metadata(t, `{"envoy.filters.http.jwt_authn":{"p":{"rpm":7}}}`)}
	require.Contains(t, string(Explain(nil, compileJSON(t, p, `{"name":"r",`+said+`}`), p, described(p))),
		`"limit":7,"limit_from":"jwt:p:rpm","per_ns"`)
}
