package child_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// parent makes the test start a child, print its process id and hang, until it is killed.
const parent = "SLUICE_TEST_PARENT"

// A child dies with the process that started it, even if that is killed.
func TestChildDiesWithItsParent(t *testing.T) {
	if os.Getenv(parent) != "" {
		c, err := child.Start(exec.Command("sleep", "60"))
		require.NoError(t, err)
		fmt.Println(c.Pid())
		select {}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestChildDiesWithItsParent$")
	cmd.Env = append(os.Environ(), parent+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(bufio.NewReader(out), &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return err != nil || strings.Contains(string(state), "State:\tZ") // nobody reaps it in a container
	}, 5*time.Second, 10*time.Millisecond)
}

// What a child that ended has printed says why.
func TestUntilTellsWhyTheChildEnded(t *testing.T) {
	for _, status := range []string{"3", "0"} {
		ending, err := child.Start(exec.CommandContext(t.Context(), "sh", "-c", "echo why; exit "+status))
		require.NoError(t, err)
		err = ending.Until(t.Context(), "serve", func() bool { return false })
		require.ErrorContains(t, err, "wait for sh to serve: it ended: exit status "+status+"\nwhy")
		require.False(t, ending.Running())
		require.NoError(t, ending.Signal(syscall.SIGSTOP))
	}
}
