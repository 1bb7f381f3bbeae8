package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

// A canary is shown with what it waits for, and what was aborted is not what a rollback
// replaces.
func TestCanaryOnPages(t *testing.T) {
	f := newFixture(t, true)
	b := f.as("apply")
	f.apply(good)
	do := func(path string) {
		w := httptest.NewRecorder()
		api.New(t.Context(), api.Options{Store: f.store, XDS: f.xds}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(good)))
		require.Less(t, w.Code, 300, w.Body.String())
	}
	do("/v1/policies?canary=10%25")
	_, text := b.get("/console/")
	require.Contains(t, text, `Revision <a href="/console/revisions/2?policy=default">2</a> is a canary of 10 % on 0 of its 0 connected proxies: waits for promote or abort.`)
	_, text = b.get("/console/revisions")
	require.Regexp(t, `(?s)>2</a>.*<td> canary</td>.*>1</a>.*<td>current</td>`, text)
	do("/v1/abort")
	_, text = b.get("/console/")
	require.NotContains(t, text, "canary")
	_, text = b.get("/console/revisions/1/rollback")
	require.Contains(t, text, `<input type="hidden" name="base" value="1">`)
	code, text := b.rollback("1")
	require.Equal(t, http.StatusOK, code, text)
}
