package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

// answering starts a server that answers every request with body.
func answering(t *testing.T) (body *string, server *httptest.Server) {
	t.Helper()
	body = new(string)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(*body))
	}))
	t.Cleanup(server.Close)
	return body, server
}

// What a server answers is looked at before it is printed, and nothing of it is
// obeyed by a terminal.
func TestAnswersOfTheServer(t *testing.T) {
	body, server := answering(t)
	for _, bad := range []string{
		"hello", `{"proxies":[{"proxy":"a"}]}`, `{"proxies":5}`, `{"proxies":[{"proxy":"a","value":"5"}]}`,
		`{"proxies":[{"allowed":true,"rules":[{"rule":"r","outcome":"matches","allowed":true,"cost":1,` +
			`"windows":[{"limit_from":"header:l"}]}]}]}`,
	} {
		*body = bad
		for _, cmd := range []*command{
			start(t, newCountersCommand(), "get", "--rule", "r", "--server", server.URL),
			start(t, newExplainCommand(), "--path", "/", "--server", server.URL),
			start(t, newCountersCommand(), "find", "--path", "/", "--server", server.URL),
		} {
			require.ErrorContains(t, <-cmd.done, "it is cut off, or not from sluice serve", bad)
		}
	}
	*body = `{"entries":[{"id":5}` + strings.Repeat(`,{"id":5}`, api.MaxAudit-1) + `]}`
	for _, limit := range []string{"0", "1"} { // again and again, and more than that
		audit := start(t, newAuditCommand(), "--limit", limit, "--server", server.URL)
		require.ErrorContains(t, <-audit.done, "it is cut off, or not from sluice serve", limit)
	}
	*body = `{"proxies":[{"proxy":"a\u001b[2J","value":1},{"proxy":"b","error":"\u009b2J","hint":"h"}]}`
	for _, output := range []string{"text", "json"} {
		c := start(t, newCountersCommand(), "get", "--rule", "r", "--server", server.URL, "--output", output)
		require.ErrorContains(t, <-c.done, "it failed on 1 of 2 proxies")
		require.NotContains(t, c.out.String(), "\x1b")
		require.NotContains(t, c.out.String(), "\u009b")
	}
}

// A request says what its body is, and says nothing where it has none.
func TestKindsOfBodies(t *testing.T) {
	var kinds []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kinds = append(kinds, r.URL.Path+" "+r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	dir := t.TempDir()
	policy := func(name string) string {
		file := filepath.Join(dir, name+".yaml")
		text := "version: 1\nname: " + name + "\nproxies: {node: " + name + "}\nrules: []\n"
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	run := func(cmd *cobra.Command, args ...string) {
		require.ErrorContains(t, <-start(t, cmd, append(args, "--server", server.URL)...).done, "answered 418")
	}
	run(newApplyCommand(), "-f", policy("one"))
	run(newApplyCommand(), "-f", policy("one"), "-f", policy("two"))
	run(newRollbackCommand())
	run(newStatusCommand())
	require.Equal(t, []string{
		"/v1/policies application/yaml", "/v1/changes application/json", "/v1/rollback/previous ", "/v1/status ",
	}, kinds)
}

// TestHeldIsShown: what requests hold stands beside what is used. Slots that are used are held.
func TestHeldIsShown(t *testing.T) {
	const window = `"windows":[{"limit":100,"per_ms":3600000,"used":7,"remaining":88,"reset_ms":9}],"held":5`
	body, server := answering(t)
	for _, step := range []struct{ operation, answer, says string }{
		{"get", `"value":7,` + window, "7 of 100 per 1h; 5 held\n"},
		{
			"peek", `"allowed":true,"rules":[{"rule":"r","key":[],"mode":"enforced","allowed":true,` + window + `}]`,
			"7 of 100 per 1h; 5 held\n",
		},
		{"get", `"value":7,` + strings.Replace(window, `"held":5`, `"held":0`, 1), "7 of 100 per 1h\n"},
		// The limit is missing.
		{"get", `"value":1,"windows":[{"requests":5,"per_ms":1000,"used":1}]`, "1 used, any number per 1s\n"},
		{"get", `"value":5,"windows":[{"limit":9,"per_ms":0,"used":5,"remaining":4,"reset_ms":0}],"held":5`, "5 of 9"},
	} {
		*body = `{"proxies":[{"proxy":"a",` + step.answer + `}]}`
		c := start(t, newCountersCommand(), step.operation, "--rule", "r", "--server", server.URL)
		require.NoError(t, <-c.done)
		require.Contains(t, c.out.String(), step.says)
		require.Equal(t, strings.Contains(step.says, "held"), strings.Contains(c.out.String(), "held"), c.out.String())
	}
}

// TestDiffWithWhatCannotBeRead: the text is compared all the same.
func TestDiffWithWhatCannotBeRead(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/policies" {
			_, _ = w.Write([]byte(`{"revisions":[{"revision":7}]}`))
			return
		}
		_, _ = w.Write([]byte(`{"revision":7,"file":"old.yaml","yaml":"version: 0\n"}`))
	}))
	defer server.Close()
	policy := file(t, "p.yaml", "version: 1\nrules: [{name: all, limits: [1/1h]}]\n")
	c := start(t, newDiffCommand(), "-f", policy, "--server", server.URL)
	require.NoError(t, <-c.done)
	require.Contains(t, c.out.String(),
		"warning: this sluice cannot read revision 7, so which counters restart is not known: old.yaml:")
	require.Contains(t, c.out.String(), "--- revision 7\n+++ p.yaml\n@@ -1,1 +1,2 @@\n-version: 0\n+version: 1\n")
	require.NotContains(t, c.out.String(), "counter ")
}

// TestCountersOfTheQuotaService: a proxy that fails, or that the service does not answer, is named.
// The script clustercounters.txtar has those that answer.
func TestCountersOfTheQuotaService(t *testing.T) {
	body, server := answering(t)
	ask := func(args ...string) (string, error) {
		c := start(t, newCountersCommand(), append(args, "--rule", "r", "--key", "a", "--server", server.URL)...)
		err := <-c.done
		return c.out.String(), err
	}
	const windows = `"windows":[{"limit":10,"per_ms":60000,"used":7,"remaining":3,"reset_ms":5}]`
	*body = `{"op":"peek","quota":{"allowed":false,"denied_by":"r","retry_after_ms":5,` +
		`"rules":[{"rule":"r","key":["a"],` +
		`"mode":"enforced","allowed":false,"reason":"limit",` + windows + `}]},` +
		`"proxies":[{"proxy":"edge-1","error":"too slow"}]}`
	out, err := ask("peek")
	require.ErrorContains(t, err, "it failed on 1 of 1 proxy")
	require.Contains(t, out, "quota service  denied, retry after 5ms  7 of 10 per 1m\nedge-1         failed: too slow")
	*body = `{"op":"get","quota":{"value":0,` + windows + `},"proxies":[{"proxy":"edge-1","value":3},` +
		`{"proxy":"edge-2","value":0,"silent":"local",` + windows + `}],"sum":3}`
	out, err = ask("get")
	require.EqualError(t, err, "the quota service does not answer 1 of 2 proxies: on_unavailable decides there")
	require.Contains(t, out, "\nedge-2         holds 0; the quota service does not answer, "+
		"so on_unavailable decides: local, the proxy's own share of the limits  7 of 10 per 1m\n")
	*body = `{"op":"get","quota":{},"proxies":[]}`
	_, err = ask("get")
	require.Error(t, err)
}
