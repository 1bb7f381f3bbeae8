package e2e

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/result"
)

// counters is the JSON that `sluice counters` prints.
type counters struct {
	Proxies []struct {
		operation

		Error string
	}
	Quota   *operation // of a rule of scope cluster
	Failed  int
	Sum     *int64
	AtLeast *int64 `json:"at_least"`
	Denials []result.Denials
}

// counters runs `sluice counters` on all proxies of the control plane.
func (c *controlPlane) counters(t *testing.T, args ...string) (result counters) {
	text, errs, exit := sluice(t, append(append([]string{"counters"}, args...), "--server", c.url(), "--output", "json")...)
	result = decoded[counters](t, cmp.Or(text, errs))
	require.Equal(t, result.Failed > 0, exit != 0, errs)
	return result
}
