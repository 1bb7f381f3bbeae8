package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A split closes the table that counts in the place of the quota service, also while its
// memory is next to be added up.
func TestSurveyAfterASplit(t *testing.T) {
	host := &proxy{Clock: 1_000_000_000_000, Client: "192.0.2.1", Store: map[string]cell{}}
	e := compileJSON(t, host, `{"name":"r","scope":"cluster","on_unavailable":"local","key":["client_ip"],"limits":["5/1h"],"capacity":50}`)
	e.Leases.Silent = true
	e.Decide()
	for range 100 {
		if e.memory[0].at == 0 {
			e.Survey()
		}
	}
	require.Equal(t, 1, e.memory[0].at)
	e.Split()
	require.NotPanics(t, e.Survey)
}
