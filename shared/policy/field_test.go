package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every row of every table is whole, and its default is what its own reader takes.
func TestTables(t *testing.T) {
	checkTable(t, policyObject)
	checkTable(t, placementObject())
	checkTable(t, selectorObject())
	checkTable(t, quotaObject)
	checkTable(t, manageObject)
	checkTable(t, ruleObject)
	checkTable(t, matchObject)
	checkTable(t, keyObject)
	checkTable(t, keyHeaderObject)
	checkTable(t, clientIPObject)
	checkTable(t, addressObject)
	checkTable(t, keyPathObject)
	checkTable(t, jwtObject)
	checkTable(t, limitObject)
	checkTable(t, requestsObject)
	checkTable(t, slotsObject)
	checkTable(t, overrideObject)
	checkTable(t, costObject)
	checkTable(t, byteCostObject)
	checkTable(t, settleObject)
	checkTable(t, settleToObject)
	checkTable(t, answerObject)
	checkTable(t, matchedCostObject)
	checkTable(t, missingKeyObject)
	checkTable(t, responseObject)
	names := map[string]bool{}
	for _, o := range Schema() {
		require.False(t, names[o.Name], o.Name)
		names[o.Name] = true
	}
	require.Len(t, names, 24+len([]string{"host", "method", "route"}))
}

func checkTable[T any](t *testing.T, o *object[T]) {
	require.LessOrEqual(t, len(o.Fields), maxFields, o.Name)
	seen := map[string]bool{}
	for i, f := range o.Fields {
		at := o.Name + "." + f.Name
		require.NotEmpty(t, f.Name, at)
		require.NotZero(t, f.Shape.Form, at)
		require.NotNil(t, o.read[i], at)
		require.False(t, seen[f.Name], at)
		seen[f.Name] = true
		require.False(t, f.Shape.Required && f.Default != nil, at)
		if f.Default != nil {
			r := &reader{}
			o.read[i](r, value{node: f.Default, at: place{}.field(at), shape: f.Shape}, new(T))
			require.Empty(t, r.problems, at)
		}
	}
}

// The kinds of key parts are the fields of the object, in its order.
func TestKeyWords(t *testing.T) {
	require.Len(t, keyKinds, len(keyObject.Fields)+1)
	for i, f := range keyObject.Fields {
		require.Equal(t, f.Name, keyKinds[i+1].word)
	}
}
