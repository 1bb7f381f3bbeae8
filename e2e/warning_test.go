package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// validate, apply and the HTTP API give the same warnings with the same positions.
func TestWarnings(t *testing.T) {
	const warned = `version: 1
rules:
  - {name: bypassable, key: [{header: x-user-id}], limits: [1/1h]}
  - {name: too-dear, match: {paths: [/dear]}, cost: 5, limits: [4/1h]}
`
	c := startControlPlane(t)
	path := file(t, "warned.yaml", warned)
	_, validated, exit := sluice(t, "validate", "-f", path)
	require.Zero(t, exit, validated)
	require.True(t, strings.HasPrefix(validated, "warning: "+path+":3:5: rules[0].missing_key: a client that leaves out x-user-id escapes this rule"), validated)
	_, applied, exit := sluice(t, "apply", "-f", path, "--server", c.url())
	require.Zero(t, exit, applied)
	require.Equal(t, validated, applied)

	res, err := http.Post(c.url()+"/v1/policies?file=warned.yaml", "application/yaml", strings.NewReader(warned))
	require.NoError(t, err)
	defer res.Body.Close()
	var stored struct {
		Warnings []struct{ Path, Message string }
	}
	require.NoError(t, json.NewDecoder(res.Body).Decode(&stored))
	require.Len(t, stored.Warnings, strings.Count(validated, "warning: "))
	for _, w := range stored.Warnings {
		require.Contains(t, validated, w.Path+": "+w.Message+"\n")
	}
}
