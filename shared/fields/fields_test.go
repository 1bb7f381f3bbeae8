package fields

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAppendName(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "per-user": "per-user", `a"b\c`: `a\"b\\c`, "é\n\x7f\xff": "????", "a~ b": "a~ b",
	} {
		require.Equal(t, ">"+want, string(appendName([]byte(">"), s)))
	}
}
