package redistest_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/redistest"
)

// orphanVariable makes TestOrphan start a server, print its address and hang, as a
// test that is about to be killed.
const orphanVariable = "REDISTEST_ORPHAN"

// A server dies with the test that started it, even where that was killed.
func TestOrphan(t *testing.T) {
	b := redistest.All(t)[0]
	if os.Getenv(orphanVariable) != "" {
		fmt.Println("server:", redistest.Start(t, b).Addr())
		select {}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestOrphan$")
	cmd.Env = append(os.Environ(), orphanVariable+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var address string
	for lines := bufio.NewScanner(out); address == "" && lines.Scan(); {
		_, address, _ = strings.Cut(lines.Text(), "server: ")
	}
	answers := func() bool {
		conn, err := net.Dial("tcp", address)
		return err == nil && conn.Close() == nil
	}
	require.True(t, answers())
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return !answers() }, 5*time.Second, 10*time.Millisecond)
}
