package api

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

// The API answers with the very problems that validate prints, each with its
// place.
func TestProblemsAreThoseOfTheFile(t *testing.T) {
	f := newFixture(t, "")
	files, err := filepath.Glob("../policyfile/testdata/bad/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, _, _, err = policyfile.Read(filepath.Base(file), text)
		var want policyfile.Errors
		require.ErrorAs(t, err, &want)
		var got Error
		f.json(http.MethodPost, "/v1/policies?file="+filepath.Base(file), string(text), http.StatusUnprocessableEntity, &got)
		require.Equal(t, Error{Error: "policy is not valid", Problems: Problems(want)}, got)
	}
	code, text := f.do(http.MethodPost, "/v1/policies", "")
	require.Equal(t, http.StatusUnprocessableEntity, code)
	require.Contains(t, text, "the policy is empty")
}
