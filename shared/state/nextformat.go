//go:build sluice_variant

package state

// A next layout, for tests of a rollout: each record has four bytes more. The same variant
// counts what it allocates, so that tests compile one instead of two.
const (
	formatVersion = 2
	keySuffix     = "2"
	pagePrefix    = "s2/"
	spareBytes    = 4
)
