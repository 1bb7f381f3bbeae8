//go:build gateway || istio

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const answersPolicy = "version: 1\nrules:\n" +
	"- {name: tokens, match: {paths: [/answers/tokens]}, key: [{header: x-user-id}], limits: [100/" + far + "], settle: {to: tokens}}\n" +
	"- {name: in-flight, match: {paths: [/answers/slow]}, key: [{header: x-user-id}], algorithm: concurrency, limits: [1]}\n"

// awaitLimit waits until all workers say that this is the limit of a rule.
func awaitLimit(t *testing.T, p *proxy, path, rule string, limit int, headers ...string) {
	want := fmt.Sprintf(`"%s";q=%d;`, rule, limit)
	eventually(t, time.Minute, fmt.Sprintf("a limit of %d by %s at %s", limit, rule, p.address), func() bool {
		for range 10 {
			res, _, err := p.try(path, append(headers, "x-user-id", "nobody", "connection", "close")...)
			if err != nil || !strings.Contains(res.Header.Get("RateLimit-Policy"), want) {
				return false
			}
		}
		return true
	})
}

// awaitStatus waits until all workers answer with it.
func awaitStatus(t *testing.T, want int, p *proxy, path string, headers ...string) {
	eventually(t, time.Minute, fmt.Sprintf("%d at %s%s", want, p.address, path), func() bool {
		for range 8 {
			res, _, err := p.try(path, append(headers, "connection", "close")...)
			if err != nil || res.StatusCode != want {
				return false
			}
		}
		return true
	})
}

// passes requires that so many requests of the user pass and the one after them is denied.
func passes(t *testing.T, n int, p *proxy, path, user string, headers ...string) {
	headers = append(headers, "x-user-id", user, "connection", "close")
	for i := range n {
		require.Equal(t, allowed, p.status(t, path, headers...), "request %d of %d", i+1, n)
	}
	require.Equal(t, denied, p.status(t, path, headers...), "request %d", n+1)
}

// requireAnswersCount requires a proxy to come to count the tokens that answers say, and the
// requests in flight.
func requireAnswersCount(t *testing.T, p *proxy) {
	tokens := func(user string) int {
		return p.status(t, "/answers/tokens", "x-user-id", user, "connection", "close",
			"x-send", "content-type: application/json", "x-body", `{"usage":{"prompt_tokens":60,"completion_tokens":41}}`)
	}
	users := 0
	eventually(t, time.Minute, "all workers to deny whose tokens are spent, and nobody else", func() bool {
		for range 8 {
			users++
			if user := fmt.Sprint("user-", users); tokens(user) != allowed || tokens(user) != denied {
				return false
			}
		}
		return true
	})

	slow := func(wait string) int {
		return p.status(t, "/answers/slow", "x-user-id", "first", "connection", "close", "x-wait", wait)
	}
	first := make(chan int, 1)
	go func() {
		status := denied
		for status == denied { // by one of those below
			status = slow("3s")
		}
		first <- status
	}()
	eventually(t, time.Second, "the slot to be taken", func() bool { return slow("0s") == denied })
	require.Empty(t, first, "it still runs")
	require.Equal(t, http.StatusOK, <-first)
	require.Equal(t, allowed, slow("0s"))
}
