package usage

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the answers into testdata")

// The answers are in a file for proxies that see them whole, in chunks and cut.
func TestAnswersOfOtherTests(t *testing.T) {
	type shape struct {
		Name, ContentType string
		Body              []byte
		Usage             Usage
	}
	shapes := make([]shape, len(answers))
	for i, a := range answers {
		a.want.Bytes = int64(len(a.body))
		shapes[i] = shape{a.name, a.contentType, []byte(a.body), a.want}
	}
	text, err := json.MarshalIndent(shapes, "", " ")
	require.NoError(t, err)
	const path = "testdata/answers.json"
	if *update {
		require.NoError(t, os.WriteFile(path, append(text, '\n'), 0o600))
	}
	golden, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, string(golden), string(text), "run go test -update")
}
