package host

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueryFault(t *testing.T) {
	for query, want := range map[string]string{
		"":                                "",
		"rule=r&key=a%20b&key=%C3%A9+%25": "",
		"rule=%zz":                        `invalid escape "%zz": a "%" is written %25`,
		"rule=%+1":                        `invalid escape "%+1": a "%" is written %25`,
		"rule=a%2":                        `invalid escape "%2": a "%" is written %25`,
		"rule=%41%":                       `invalid escape "%": a "%" is written %25`,
		"rule=r;key=a":                    `parameters are separated by "&"; a ";" in one is written %3B`,
	} {
		require.Equal(t, want, queryFault(query), query)
	}
}
