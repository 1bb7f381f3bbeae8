package lease

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/allot"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

// A denial of the service is a block before it is units that others hold, and that before it is a limit.
func TestWhatTheServiceDeniesBy(t *testing.T) {
	require.Equal(t, decide.Denied, denialOf(&allot.Allotment{Denied: true}))
	require.Equal(t, decide.HeldBack, denialOf(&allot.Allotment{Denied: true, HeldBack: true}))
	require.Equal(t, decide.Blocked, denialOf(&allot.Allotment{Denied: true, HeldBack: true, Blocked: true}))
}
