package e2e

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// quotaService is a running `sluice quota`.
type quotaService struct {
	*child.Child

	address, http string
	store         string // URL, or memory
}

// startQuota starts a quota service for this test alone.
func startQuota(t *testing.T, store string) *quotaService {
	s := &quotaService{address: freeAddress(t), http: freeAddress(t), store: store}
	s.start(t)
	t.Cleanup(func() { end(t, s.Child) })
	return s
}

// start starts the service, also again after a kill: at the same address.
func (s *quotaService) start(t *testing.T) {
	s.begin(t)
	require.NoError(t, s.Until(t.Context(), "answer", func() bool { return answered("http://" + s.http + "/healthz") }))
}

// begin is start that does not wait until its store has started.
func (s *quotaService) begin(t *testing.T) {
	var err error
	s.Child, err = child.Start(exec.Command(built.sluice, "quota", "--listen", s.address, "--http", s.http, "--quota-store", s.store))
	require.NoError(t, err)
}

// kill ends the service as kill -9 does.
func (s *quotaService) kill() { _ = s.Kill() }

// stop ends the service as an operator does.
func (s *quotaService) stop(t *testing.T) {
	s.signal(t, syscall.SIGTERM)
	<-s.Done()
}

// quotaPair is two quota services on one store, and a gate to both for each of some proxies.
type quotaPair struct {
	services []*quotaService
	gates    []*gate
}

func startPair(t *testing.T, store string, proxies int) *quotaPair {
	p := &quotaPair{services: []*quotaService{startQuota(t, store), startQuota(t, store)}}
	for range proxies {
		p.gates = append(p.gates, newGate(t, p.addresses()...))
	}
	return p
}

func (p *quotaPair) addresses() (all []string) {
	for _, s := range p.services {
		all = append(all, s.address)
	}
	return all
}

func (p *quotaPair) eachGate(do func(g *gate)) {
	for _, g := range p.gates {
		do(g)
	}
}

func (s *quotaService) signal(t *testing.T, signal os.Signal) {
	require.NoError(t, s.Signal(signal))
}
