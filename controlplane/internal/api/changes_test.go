package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// A revision of an older version may be none today: it is replaced all the same.
func TestApplyOverAPolicyThatCannotBeRead(t *testing.T) {
	f := newFixture(t, "")
	_, err := f.store.Append(t.Context(), store.Change{Drafts: []store.Draft{{File: "old.yaml", YAML: []byte("version: 0\n"), JSON: []byte(`{}`)}}})
	require.NoError(t, err)
	var a Applied
	f.json("POST", "/v1/policies", good, 201, &a)
	require.Equal(t, uint64(2), a.Number)
	require.Nil(t, a.Changes)
}
