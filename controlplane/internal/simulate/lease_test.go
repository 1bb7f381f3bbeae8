package simulate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each worker has leases of its own; what one holds is used for the others,
// until it goes back on the first tick after 100 ms. The same input gives the
// same output.
func TestLeases(t *testing.T) {
	const policy = `{"version":1,"rules":[{"name":"r","key":[{"header":"u"}],"limits":["1000/1h"],"lease":8}]}`
	var in strings.Builder
	for i := range 1 + 2 + 4 + 3 {
		fmt.Fprintf(&in, `{"at_ms":%d,"worker":0,"headers":{"u":"a"}}`+"\n", 1000+i)
	}
	for _, at := range []int{1010, 1107, 2010} {
		fmt.Fprintf(&in, `{"at_ms":%d,"worker":0,"op":"get","rule":"r","key":["a"]}`+"\n", at)
		fmt.Fprintf(&in, `{"at_ms":%d,"worker":1,"op":"get","rule":"r","key":["a"]}`+"\n", at)
	}
	in.WriteString(`{"at_ms":2010,"worker":0,"op":"reset","rule":"r","key":["a"]}` + "\n")
	in.WriteString(`{"at_ms":2010,"worker":1,"headers":{"u":"a"}}` + "\n")
	first, err := run(t, policy, in.String(), 2)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(first), "\n")
	for i := range 10 {
		require.Contains(t, lines[i], fmt.Sprintf(`"used":%d,"remaining":%d,`, i+1, 999-i), "what is held is not used")
	}
	for i, value := range []int{10, 15, 10, 15, 10, 10, 1} {
		require.Contains(t, lines[10+i], fmt.Sprintf(`"value":%d,`, value), i)
	}
	require.Contains(t, lines[17], `"used":1,"remaining":999,`)
	second, err := run(t, policy, in.String(), 2)
	require.NoError(t, err)
	require.Equal(t, first, second)
}
