package quota_test

import (
	"testing"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota/storetest"
)

func TestMemoryConforms(t *testing.T) {
	storetest.Run(t, func() quota.Store { return quota.NewMemory(quota.SteadyClock()) })
}
