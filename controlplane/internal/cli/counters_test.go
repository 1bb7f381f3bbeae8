package cli

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

// TestCountersAsksNobodyElse: what is no management path is told as such, and
// where it points to never sees the token.
func TestCountersAsksNobodyElse(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s was asked with %q", r.URL, r.Header)
	}))
	defer elsewhere.Close()
	t.Setenv("HTTP_PROXY", elsewhere.URL)
	body := ""
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body == "" {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		_, _ = w.Write([]byte(body))
	}))
	defer proxy.Close()
	token := file(t, "token", "t0ken\n")
	run := func(args ...string) (string, error) {
		c := start(t, newCountersCommand(), append(args, "--manage-token-file", token, "--proxy", proxy.URL+"/.sluice")...)
		err := <-c.done
		return c.out.String(), err
	}
	_, err := run("get", "--rule", "r")
	require.ErrorContains(t, err, "answers 307 Temporary Redirect, not as a management path does")
	for _, tc := range []struct{ op, body string }{
		{"get", "hello"}, {"get", `{}`}, {"get", `{"value":"5"}`}, {"get", `[1]`}, {"peek", `{"value":5}`},
		{"peek", `{"allowed":true}`}, {"peek", `{"allowed":true,"rules":5}`}, {"expires-at", `{"windows":[]}`},
		{"get", `{"value":1,"windows":[{"per_ns":"x"}]}`},
	} {
		body = tc.body
		text, err := run(tc.op, "--rule", "r")
		require.ErrorContains(t, err, "answers, but not as a management path does", tc.body)
		require.Empty(t, text)
	}
	body = `{"value":5}`
	_, err = run("stats")
	require.ErrorContains(t, err, "not as a management path does")
}

func TestCountersRoundUp(t *testing.T) {
	for ns, ms := range map[int64]int64{0: 0, 1: 1, 999_999: 1, 1_000_000: 1, 1_000_001: 2} {
		require.Equal(t, ms, milliseconds(ns))
	}
	a, ok := readCounterAnswer(operation{name: "peek"}, []byte(`{"allowed":false,"denied_by":"r","retry_after_ns":1000001,"rules":[`+
		`{"rule":"r","key":["a"],"mode":"enforced","allowed":false,"reason":"on_full","windows":[]},`+
		`{"rule":"s","key":[],"mode":"shadow","allowed":false,"windows":[{"unlimited":true,"per_ns":1000000,"used":3,"reset_ns":1}]}]}`))
	require.True(t, ok)
	require.Equal(t, int64(2), *a.RetryMs)
	row := counterRow{Proxy: "p", counterAnswer: a}
	require.Equal(t, []string{"p", "denied, retry after 2ms (on_full)", "3 of any number per 1ms"}, verdictCells(row))
}

// TestTargets: what the control plane tells is checked before it is used.
func TestTargets(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"proxies":[{"node":"a","url":"http://127.0.0.1:9902/.sluice/"},{"node":"b","url":"nonsense"},{"node":"c","problem":"p","hint":"h"}]}`))
	}))
	defer server.Close()
	o := countersOptions{clientOptions: clientOptions{server: server.URL}}
	targets, err := o.targets(t.Context())
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9902", targets[0].url.Host)
	require.ErrorContains(t, targets[1].err, `"nonsense", which is none`)
	require.Equal(t, "h", Hint(targets[2].err))
	far := targetOf(api.ManagedProxy{Node: "a", URL: "http://127.0.0.1:9902/.sluice/"}, "sluice.example")
	require.ErrorContains(t, far.err, "of loopback on the server's machine")
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
	require.Contains(t, c.out.String(), "warning: this sluice cannot read revision 7, so which counters restart is not told: old.yaml:")
	require.Contains(t, c.out.String(), "--- revision 7\n+++ p.yaml\n@@ -1,1 +1,2 @@\n-version: 0\n+version: 1\n")
	require.NotContains(t, c.out.String(), "counter ")
}
