//go:build gateway || istio

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const answersPolicy = "version: 1\nrules:\n" +
	"- {name: tokens, match: {paths: [/answers/tokens]}, key: [{header: x-user-id}], limits: [100/" + far + "], settle: {to: tokens}}\n" +
	"- {name: in-flight, match: {paths: [/answers/slow]}, key: [{header: x-user-id}], algorithm: concurrency, limits: [1]}\n"

// requireAnswersCount requires a proxy to come to count the tokens that answers say, and the
// requests in flight. send sends one request; headers come in pairs.
func requireAnswersCount(t *testing.T, send func(path string, headers ...string) int) {
	tokens := func(user string) int {
		return send("/answers/tokens", "x-user-id", user, "connection", "close",
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
		return send("/answers/slow", "x-user-id", "first", "connection", "close", "x-wait", wait)
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
