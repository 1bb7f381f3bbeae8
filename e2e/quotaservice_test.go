package e2e

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// quotaService is a running `sluice quota`.
type quotaService struct {
	address, http string
	store         string // URL, or memory
	log           *output
	cmd           *exec.Cmd
}

// startQuota starts a quota service for this test alone.
func startQuota(t *testing.T, store string) *quotaService {
	t.Helper()
	s := &quotaService{address: freeAddress(t), http: freeAddress(t), store: store}
	s.start(t)
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("log of a quota service:\n%s", s.log)
		}
	})
	return s
}

// start starts the service, also again after a kill: at the same address.
func (s *quotaService) start(t *testing.T) {
	t.Helper()
	s.log = &output{}
	s.cmd = exec.Command(built.sluice, "quota", "--listen", s.address, "--http", s.http, "--quota-store", s.store)
	s.cmd.Stderr = s.log
	require.NoError(t, s.cmd.Start())
	eventually(t, 30*time.Second, "the quota service to answer", func() bool { return answered("http://" + s.http + "/healthz") })
}

// kill ends the service as kill -9 does.
func (s *quotaService) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// stop ends the service as an operator does.
func (s *quotaService) stop(t *testing.T) {
	t.Helper()
	s.signal(t, syscall.SIGTERM)
	require.NoError(t, s.cmd.Wait())
}

func (s *quotaService) signal(t *testing.T, signal os.Signal) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(signal))
}
