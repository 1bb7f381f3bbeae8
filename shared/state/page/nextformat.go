//go:build sluice_variant

package page

// A next layout, for tests of a rollout: each record has four bytes more. The same variant of the filter also counts
// what it allocates (mallocs.go of filter/internal/host), so that tests compile one instead of two.
const (
	FormatVersion = 2
	KeySuffix     = "2"
	KeyPrefix     = "s2/"
	spareBytes    = 4
)
