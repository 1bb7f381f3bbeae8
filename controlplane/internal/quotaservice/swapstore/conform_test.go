package swapstore_test

import (
	"testing"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/storetest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

func TestMemoryConforms(t *testing.T) {
	storetest.Conform(t, func() swapstore.Store { return swapstore.NewMemory(swapstore.SteadyClock()) })
}
