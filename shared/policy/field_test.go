package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The kinds of key parts are the fields of the object, in its order.
func TestKeyWords(t *testing.T) {
	require.Len(t, keyKinds, len(keyObject.Fields)+1)
	for i, f := range keyObject.Fields {
		require.Equal(t, f.Name, keyKinds[i+1].word)
	}
}
