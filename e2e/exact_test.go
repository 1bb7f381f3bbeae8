package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	allowed = http.StatusOK
	denied  = http.StatusTooManyRequests
)

// perUser returns a policy that limits each value of x-user-id.
func perUser(limits string) string {
	return "version: 1\nrules: [{name: per-user, key: [{header: x-user-id}], limits: [" + limits + "]}]\n"
}

// user returns a function for load.send that sends requests of one user.
func user(name string) func(int) request {
	return func(int) request { return request{"/", "x-user-id", name} }
}

var freshKeys = flag.Int("fresh-keys", 500, "keys whose records all workers race to create")

func TestFreshKeys(t *testing.T) {
	const times = 20
	keys := *freshKeys
	everyProxy(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("1/"+far))
		// The requests for one key follow each other at once, over different
		// connections, so that workers race to create its record.
		key := func(i int) int { return i / times }
		got := s.load(16).send(t, keys*times, func(i int) request {
			return request{"/", "x-user-id", fmt.Sprint("user-", key(i))}
		})
		require.Equal(t, slices.Repeat([]int{1}, keys), perKey(t, got, keys, key))
	})
}

func TestRaisedLimitLetsTheDifferenceThrough(t *testing.T) { everyProxy(t, rows("changes")) }
