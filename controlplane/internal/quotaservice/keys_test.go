package quotaservice

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// TestLongLogsAreBounded: a key that has counted long logs takes kilobytes as the service
// knows it, and few in the store.
func TestLongLogsAreBounded(t *testing.T) {
	b := newRig(t)
	var windows []limit.Window
	for i := range quota.MaxWindows {
		windows = append(windows, logOf(512, minute+int64(i)))
	}
	p := b.proxy(b.service, define(1, quota.LeaseOff, windows...))
	before := proctest.Heap()
	for i := range 15_000 {
		part := want(512)
		part.Key = quota.KeyOf(uint64(i), 0)
		require.Equal(t, quota.Granted, p.ask(part).Outcome)
	}
	took := proctest.Heap() - before
	t.Logf("15,000 asks took %d MiB", took>>20)
	proctest.Below(t, took, 64<<20)
	runtime.KeepAlive(b)
}
