//go:build sluice_variant

package state

// A next layout, for tests of a rollout: each record has four bytes more. The same variant of the filter also counts
// what it allocates (mallocs.go of filter/internal/host), so that tests compile one instead of two.
const (
	formatVersion = 2
	keySuffix     = "2"
	pagePrefix    = "s2/"
	spareBytes    = 4
)
