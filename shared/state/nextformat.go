//go:build sluice_layout

package state

// A next layout, for tests of a rollout: each record has four bytes more.
const (
	formatVersion = 2
	keySuffix     = "2"
	pagePrefix    = "s2/"
	spareBytes    = 4
)
