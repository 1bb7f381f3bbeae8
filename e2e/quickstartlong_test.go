//go:build long

package e2e

import "testing"

func TestQuickstartWithEnvoys(t *testing.T) {
	t.Parallel()
	quickstartHasFigures(t, "--envoy", newest(t).envoy)
}
