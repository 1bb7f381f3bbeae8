package machine_test

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/machine"
)

func TestTimes(t *testing.T) {
	all, err := machine.UsedTime()
	require.NoError(t, err)
	before, err := machine.CPUTime(os.Getpid())
	require.NoError(t, err)
	after := before
	for deadline := time.Now().Add(time.Minute); after-before < 20*time.Millisecond; { // spends CPU time, while it gets some
		require.True(t, time.Now().Before(deadline), "in a minute this process took %v", after-before)
		after, err = machine.CPUTime(os.Getpid())
		require.NoError(t, err)
	}
	require.Less(t, after-before, 10*time.Second)
	now, err := machine.UsedTime()
	require.NoError(t, err)
	require.GreaterOrEqual(t, now, all) // steps of 10 ms

	_, err = machine.CPUTime(1 << 22) // beyond the last process id there can be
	require.Error(t, err)
}

func TestProcessorAndCores(t *testing.T) {
	name, err := machine.Processor()
	require.NoError(t, err)
	require.NotEmpty(t, name)
	cores, err := machine.Cores()
	require.NoError(t, err)
	require.NotEmpty(t, cores)
	require.True(t, slices.IsSorted(cores))
}

func TestPin(t *testing.T) {
	cores, err := machine.Cores()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), "sleep", "60")
	child.SysProcAttr = machine.DieWithParent()
	require.NoError(t, child.Start())
	require.NoError(t, machine.Pin(child.Process.Pid, cores[0]))
	text, err := os.ReadFile("/proc/" + strconv.Itoa(child.Process.Pid) + "/status")
	require.NoError(t, err)
	require.Contains(t, string(text), "\nCpus_allowed_list:\t"+strconv.Itoa(cores[0])+"\n")
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	require.ErrorContains(t, machine.Pin(child.Process.Pid, cores[0]), "it has no threads")
}

// A free port can be listened on, also again, by whoever names it; who asks for any
// port, or connects from any, is given another one.
func TestFreePorts(t *testing.T) {
	const n = 3
	ports, err := machine.FreePorts(n)
	require.NoError(t, err)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(ports))), n)
	for _, port := range ports {
		for range 2 {
			listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			require.NoError(t, err)
			require.NoError(t, listener.Close())
		}
	}
	for range 30_000 { // more than there are
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NotContains(t, ports, l.Addr().(*net.TCPAddr).Port)
		require.NoError(t, l.Close())
	}
}
