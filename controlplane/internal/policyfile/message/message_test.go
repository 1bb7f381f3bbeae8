package message

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	words := []string{"name", "limits", "missing_key", "on_error", "key"}
	for text, want := range map[string]string{
		"naem": "name", "Limits": "limits", "limit": "limits", "missingkey": "missing_key", "missing-key": "missing_key",
		"onerror": "on_error", "keys": "key", "k": "", "kye": "key", "flavor": "", "": "", strings.Repeat("name", 20): "",
	} {
		require.Equal(t, want, Nearest(text, words), text)
	}
}
