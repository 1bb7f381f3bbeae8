package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every row of every table is whole, its default is what its own reader takes,
// and nothing is both built and not built.
func TestFieldTables(t *testing.T) {
	checkTable(t, "policy", policyFields)
	checkTable(t, "manage", manageFields)
	checkTable(t, "rule", ruleFields)
	checkTable(t, "match", matchFields)
	checkTable(t, "key", keyFields)
	checkTable(t, "client_ip", clientIPFields)
	checkTable(t, "path", keyPathFields)
	checkTable(t, "limit", limitFields)
	checkTable(t, "override", overrideFields)
	checkTable(t, "cost", costFields)
	checkTable(t, "response", responseFields)
}

func checkTable[T any](t *testing.T, object string, fields []field[T]) {
	require.LessOrEqual(t, len(fields), maxRows, object)
	seen := map[string]bool{}
	for _, row := range fields {
		at := object + "." + row.name
		require.NotEmpty(t, row.name, at)
		require.NotEmpty(t, row.doc, at)
		require.NotZero(t, row.shape.form, at)
		require.NotEmpty(t, row.shape.String(), at)
		require.NotNil(t, row.read, at)
		require.False(t, seen[row.name], at)
		seen[row.name] = true
		require.False(t, row.required && row.def != "", at)
		require.False(t, isNotBuilt(object, row.name), at)
		for _, w := range row.shape.words {
			require.False(t, isNotBuiltWord(row.name, w), at)
		}
		if row.def != "" {
			r := &reader{}
			row.read(r, value{node: defaultNode(row.def), at: place{}.field(at), shape: row.shape}, new(T))
			require.Empty(t, r.errs, at)
		}
	}
}
