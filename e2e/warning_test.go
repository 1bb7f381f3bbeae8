package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// warned is a policy that gets many kinds of warnings.
const warned = `
version: 1
` + managed + `rules:
  - {name: bypassable, key: [{header: x-user-id}], limits: [1/1h]}
  - {name: sliding, algorithm: sliding_window_counter, limits: [1/1h]}
  - {name: covered, key: [client_ip], limits: [9/1h], overrides: [{key: ["192.0.2.*"], unlimited: true}, {key: ["192.0.2.7"], unlimited: true}]}
  - {name: unreachable, match: {paths: ["/.sluice/*"]}, limits: [1/1h]}
  - {name: contradiction, match: {headers: {x-user-id: "!"}}, key: [client_ip, {header: x-user-id}], limits: [1/1h]}
  - {name: too-dear, match: {paths: [/dear]}, cost: 5, limits: [4/1h]}
`

// validate, apply and the HTTP API give the same warnings with the same positions, and
// the proxy accepts the policy.
func TestWarnings(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, warned)
		path := file(t, "warned.yaml", strings.Replace(warned, "version: 1", "version: 1\ndomain: "+s.domain, 1))
		_, validated, exit := sluice(t, "validate", "-f", path)
		require.Zero(t, exit, validated)
		lines := strings.Split(strings.TrimSpace(validated), "\n")
		for i, want := range []string{
			"4:9: manage: without port, management requests are answered on every listener",
			"6:5: rules[0].missing_key: a client that leaves out x-user-id escapes this rule",
			"7:65: rules[1].limits[0]: a sliding_window_counter of 1 lets two requests through",
			"8:106: rules[2].overrides[1]: can never match: rules[2].overrides[0] comes first",
			"9:40: rules[3].match.paths: the rule applies to no request",
			"10:56: rules[4].match.headers.x-user-id: the rule applies to no request",
			`11:38: rules[5].match.paths[0]: many an upstream takes "/dear/" for this path`,
			"11:65: rules[5].limits[0]: denies every request",
		} {
			require.True(t, strings.HasPrefix(lines[i], "warning: "+path+":"+want), lines[i])
		}
		require.Len(t, lines, 8)

		_, applied, exit := sluice(t, "apply", "-f", path, "--server", s.control.url(), "--wait", "60s")
		require.Zero(t, exit, applied)
		require.Equal(t, validated, applied)

		text := strings.Replace(warned, "version: 1", "version: 1\ndomain: "+s.domain+"-2", 1)
		res, err := http.Post(s.control.url()+"/v1/policies?file=warned.yaml", "application/yaml", strings.NewReader(text))
		require.NoError(t, err)
		defer res.Body.Close()
		var stored struct {
			Warnings []struct{ Path, Message string }
		}
		require.NoError(t, json.NewDecoder(res.Body).Decode(&stored))
		require.Len(t, stored.Warnings, 8)
		for _, w := range stored.Warnings {
			require.Contains(t, validated, w.Path+": "+w.Message+"\n")
		}
	})
}
