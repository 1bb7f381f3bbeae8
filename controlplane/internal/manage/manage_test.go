package manage

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A key that no proxy would read is refused here, not as a proxy without
// management.
func TestLongKeys(t *testing.T) {
	get := Operations[2]
	require.Equal(t, "get", get.Name)
	_, err := get.Query(Subject{Rule: "r", Key: []string{strings.Repeat("a", maxQuery-100)}})
	require.NoError(t, err)
	for _, key := range [][]string{
		{strings.Repeat("a", maxQuery)},
		{strings.Repeat("\x00", maxQuery/3+1)},
		{strings.Repeat("a", maxQuery/2), strings.Repeat("b", maxQuery/2)},
	} {
		_, err = get.Query(Subject{Rule: "r", Key: key})
		require.EqualError(t, err, "key has more than 57344 bytes, escaped as in a URL: no proxy takes a request as long")
	}
}
