package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// edgesPolicy has rules that are charged for different answers.
const edgesPolicy = `
version: 1
` + managed + `rules:
  - {name: all, match: {paths: ["/edges", "/edges/*"]}, key: [{header: x-user-id}], limits: [100/` + far + `], settle: {}}
  - {name: errors, match: {paths: ["/edges", "/edges/*"]}, key: [{header: x-user-id}], limits: [100/` + far + `], settle: {when: {status: [403, 418, "5xx"]}}}
  - name: missing
    match: {paths: [/edges], headers: {content-type: application/grpc}}
    key: [{header: x-user-id}]
    limits: [100/` + far + `]
    settle: {when: {grpc_status: [5]}}
  - {name: cost, match: {paths: [/edges]}, key: [{header: x-user-id}], limits: [100/` + far + `], settle: {to: {trailer: x-cost}, unknown: 0}}
  - name: bytes
    match: {paths: [/edges]}
    key: [{header: x-user-id}]
    limits: [100/` + far + `]
    settle: {to: response_bytes, when: {status: ["2xx"], no_answer: false}}
  - {name: each, match: {paths: [/edges]}, key: [{header: x-user-id}], algorithm: concurrency, limits: [3], hold: 10s, linger: 15s}
  - {name: in-flight, match: {paths: ["/flight", "/flight/*"]}, algorithm: concurrency, limits: [10], hold: 10s}
`

// edgesRules are in the order of visit.charged.
var edgesRules = [5]string{"all", "errors", "missing", "cost", "bytes"}

// charged: each way in which an answer may end, or not, is charged as it has to, once.
func (r *answerRig) charged(t *testing.T) {
	c := newClients(t, r.address, r.upstream)
	statuses := make([]int, len(visits))
	atOnce(len(visits), func(i int) {
		statuses[i] = c.visit(t.Context(), &visits[i], "/edges", fmt.Sprint("edge-", i), 600*time.Millisecond, fmt.Sprint("x-user-id: u", i))
	})
	time.Sleep(time.Second)
	for i := range visits {
		held := r.operate(t, "get", fmt.Sprint("rule=each&key=u", i)).Held
		require.Equal(t, visits[i].lingers(), *held == 1, "%s: holds %d", visits[i].name, *held)
	}
	for i := range visits {
		v := &visits[i]
		require.Equal(t, v.want, statuses[i], v.name)
		key := fmt.Sprint("&key=u", i)
		for j, rule := range edgesRules {
			require.Equal(t, v.charged[j], used(t, r.proxy, rule+key), "%s, rule %s", v.name, rule)
		}
	}
	used(t, r.proxy, "each&key=u0")
	for _, rule := range append(edgesRules[:], "each") {
		r.requireGauges(t, rule)
	}
}
