package machine_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

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
	c, err := child.Start(exec.CommandContext(t.Context(), "sleep", "60"))
	require.NoError(t, err)
	require.NoError(t, machine.Pin(c.Pid(), cores[0]))
	text, err := os.ReadFile("/proc/" + strconv.Itoa(c.Pid()) + "/status")
	require.NoError(t, err)
	require.Contains(t, string(text), "\nCpus_allowed_list:\t"+strconv.Itoa(cores[0])+"\n")
	c.Kill()
	require.ErrorContains(t, machine.Pin(c.Pid(), cores[0]), "it has no threads")
}
