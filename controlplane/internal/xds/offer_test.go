package xds

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func TestOffer(t *testing.T) {
	const (
		pending  = ""
		accepted = "a"
		refused  = "r"
		mixed    = "ar"
	)
	for _, tc := range []struct {
		name    string
		history []string // revision 1, 2, …
		proxy   stance
		want    uint64
	}{
		{"no revision", nil, stance{}, 0},
		{"nobody has answered: a fresh proxy gets the newest", []string{pending, pending}, stance{Since: 2}, 2},
		{"accepted newest", []string{accepted, accepted}, stance{Since: 2}, 2},
		{"applied while no proxy was there", []string{accepted, pending}, stance{Since: 2}, 2},

		{"refused newest is withheld from those who come later", []string{accepted, refused}, stance{Since: 2}, 1},
		{"but not from those who were there", []string{accepted, refused}, stance{Since: 1}, 2},
		{"nor once someone accepted it", []string{accepted, mixed}, stance{Since: 2}, 2},
		{"two refused in a row", []string{accepted, refused, refused}, stance{Since: 3}, 1},
		{"withheld: what nobody has answered is no last good", []string{accepted, pending, refused}, stance{Since: 3}, 1},
		{"withheld, nothing accepted: the newest that none refused", []string{pending, pending, refused}, stance{Since: 3}, 2},
		{"all refused", []string{refused, refused}, stance{Since: 2}, 0},
		{"one that comes later runs an old one: last good of the fleet", []string{accepted, accepted, refused}, stance{Acked: 1, Since: 3}, 2},

		{"refused by this proxy: back to its own", []string{accepted, accepted, mixed}, stance{Acked: 1, Refused: []uint64{3}, Misses: 1}, 1},
		{"the same once it has confirmed", []string{accepted, accepted, mixed}, stance{Acked: 1, Refused: []uint64{3}}, 1},
		{"refused by this proxy, it never accepted any", []string{accepted, accepted, refused}, stance{Refused: []uint64{3}, Misses: 1}, 2},
		{"the very first one refused", []string{refused}, stance{Refused: []uint64{1}, Misses: 1}, 0},
		{"the next revision after a refusal", []string{accepted, refused, pending}, stance{Acked: 1, Refused: []uint64{2}, Since: 1}, 3},
		{"a newer one withheld does not move a proxy off its own", []string{accepted, accepted, mixed, refused}, stance{Acked: 1, Refused: []uint64{3}, Since: 4}, 1},

		{"last good refused too: left alone", []string{accepted, accepted, refused}, stance{Acked: 2, Refused: []uint64{3, 2}, Misses: 2}, 0},
		{"until there is a new one", []string{accepted, accepted, refused, pending}, stance{Acked: 2, Refused: []uint64{3, 2}, Misses: 2}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			known := new(track)
			for i, h := range tc.history {
				known.revisions = append(known.revisions, store.Summary{
					Number: uint64(i + 1), Acked: h == accepted || h == mixed, Nacked: h == refused || h == mixed,
				})
			}
			require.Equal(t, tc.want, known.offer(tc.proxy))
		})
	}
}
