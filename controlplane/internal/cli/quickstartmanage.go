package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// managedStore gives policies without manage one, so that the console of quickstart has
// figures whatever is applied. What is stored stays as it was written.
type managedStore struct {
	store.Store

	section []byte // a member of the policy's JSON
}

// Get returns a revision as proxies get it.
func (s managedStore) Get(ctx context.Context, number uint64) (store.Revision, error) {
	r, err := s.Store.Get(ctx, number)
	if err != nil {
		return r, err
	}
	var written struct{ Manage json.RawMessage }
	if err := json.Unmarshal(r.JSON, &written); err != nil {
		return r, fmt.Errorf("read revision %d: %w", number, err)
	}
	if rest, ok := bytes.CutPrefix(r.JSON, []byte("{")); ok && written.Manage == nil {
		r.JSON = slices.Concat([]byte("{"), s.section, []byte(","), rest)
	}
	return r, nil
}
