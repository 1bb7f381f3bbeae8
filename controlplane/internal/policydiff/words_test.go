package policydiff_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

func TestWords(t *testing.T) {
	const before = `{version: 1, domain: a, rules: [
  {name: r, key: [{header: x}], limits: [3/1m]}, {name: s, key: [path], limits: [1/1s]}, {name: t, key: [path], limits: [1/1s]}]}`
	for after, want := range map[string][]string{
		before: nil,
		`{version: 1, domain: b, rules: [
  {name: r, key: [{header: x}], limits: [5/1m], missing_key: deny}, {name: s, key: [path], limits: [1/1s], mode: shadow}, {name: u, key: [path], limits: [1/1s]}]}`: {
			`domain "a" → "b"`,
			`rule "r": limits ["3/1m"] → ["5/1m"]`,
			`rule "r": missing_key "deny" is new`,
			`rule "s": mode "shadow" is new`,
			`rule "u" is new`,
			`rule "t" is gone`,
		},
		`{version: 1, domain: a, rules: [
  {name: s, key: [path], limits: [1/1s]}, {name: r, key: [{header: x}], limits: [3/1m]}, {name: t, key: [path], limits: [1/1s]}]}`: {
			"the order of the rules changes",
		},
	} {
		old, err := policyfile.Parse("before", []byte(before))
		require.NoError(t, err)
		now, err := policyfile.Parse("after", []byte(after))
		require.NoError(t, err)
		require.Equal(t, want, policydiff.Words(old, now))
	}
}
