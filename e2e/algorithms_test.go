package e2e

import (
	"testing"
)

// managed is a policy's field that sets the management token to the tests' token.
const managed = "manage: {path: /.sluice/, token_sha256: " + tokenSHA256 + "}\n"

// oneRule returns a policy of one rule that limits each value of x-user-id.
func oneRule(fields string) string {
	return "version: 1\nrules: [{name: per-user, key: [{header: x-user-id}], " + fields + "}]\n" + managed
}

// separate has proxies that only these tests share. Other tests run a filter of an earlier commit,
// which cannot read a directory with an algorithm that it does not know.
func separate(d driver) driver {
	d.name += "-algorithms"
	return d
}

func TestAlgorithms(t *testing.T) {
	each(t, func(t *testing.T, d driver) { rows("algorithms")(t, separate(d)) })
}
