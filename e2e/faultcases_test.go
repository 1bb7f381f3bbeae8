//go:build long

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fault is something that goes wrong.
type fault struct {
	Name   string
	cut    int // proxies that it cuts off from the services or from what they count
	losses int // times that the store loses what was counted
	short  bool
	happen func(t *testing.T, f *faultRig)
}

// faults are those of one store.
var faults = []fault{
	{Name: "nothing", happen: func(*testing.T, *faultRig) { time.Sleep(2 * time.Second) }},
	{Name: "a quota service killed (`kill -9`)", short: true, happen: func(t *testing.T, f *faultRig) {
		f.services[0].kill()
		time.Sleep(2 * time.Second)
		f.services[0].start(t)
	}},
	{Name: "all quota services killed", cut: 3, happen: func(t *testing.T, f *faultRig) {
		for _, s := range f.services {
			s.kill()
		}
		time.Sleep(2 * time.Second)
		for _, s := range f.services {
			s.start(t)
		}
	}},
	{Name: "a quota service stopped for 30 s (`SIGSTOP`)", cut: 3, happen: func(t *testing.T, f *faultRig) {
		f.services[0].signal(t, syscall.SIGSTOP)
		time.Sleep(30 * time.Second)
		f.services[0].signal(t, syscall.SIGCONT)
	}},
	{Name: "a quota service replaced, a third one beside", happen: func(t *testing.T, f *faultRig) {
		third := startQuota(t, f.services[0].store)
		f.eachGate(func(g *gate) { g.lead(append(f.addresses(), third.address)...) })
		time.Sleep(time.Second)
		f.services[0].stop(t)
		time.Sleep(time.Second)
		f.services[0].start(t)
		time.Sleep(time.Second)
		f.eachGate(func(g *gate) { g.lead(f.addresses()...) })
		third.stop(t)
	}},
	{Name: "an Envoy killed (`kill -9`)", happen: func(t *testing.T, f *faultRig) {
		f.load.move(0, "")
		f.proxies[0].kill()
		f.startProxy(t, 0)
	}},
	{Name: "an Envoy stopped for 30 s (`SIGSTOP`)", cut: 1, happen: func(t *testing.T, f *faultRig) {
		from := time.Now().UnixNano()
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGSTOP))
		time.Sleep(30 * time.Second)
		require.NoError(t, f.proxies[0].envoy.Signal(syscall.SIGCONT))
		f.stopped = append(f.stopped, [2]int64{from, time.Now().UnixNano()})
	}},
	{Name: "one Envoy cut off for 3 s", cut: 1, happen: func(_ *testing.T, f *faultRig) {
		f.gates[0].hold()
		time.Sleep(3 * time.Second)
		f.gates[0].open()
	}},
	{Name: "all Envoys cut off for 3 s", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		f.eachGate((*gate).hold)
		time.Sleep(3 * time.Second)
		f.eachGate((*gate).open)
	}},
	{Name: "answers held back for 50 ms, again and again", happen: func(_ *testing.T, f *faultRig) {
		for range 20 {
			f.eachGate((*gate).hold)
			time.Sleep(50 * time.Millisecond)
			f.eachGate((*gate).open)
			time.Sleep(70 * time.Millisecond)
		}
	}},
	{Name: "connections reset, every 150 ms", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		for range 20 {
			f.eachGate((*gate).cut)
			time.Sleep(150 * time.Millisecond)
		}
	}},
	{Name: "answers lost", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		for range 10 {
			f.eachGate((*gate).loseAnswers)
			time.Sleep(30 * time.Millisecond)
			f.eachGate((*gate).cut)
			f.eachGate((*gate).open)
			time.Sleep(270 * time.Millisecond)
		}
	}},
	{Name: "first messages replayed to another service", happen: func(t *testing.T, f *faultRig) {
		for range 10 {
			f.eachGate(func(g *gate) { g.replay(t) })
			time.Sleep(300 * time.Millisecond)
		}
	}},
	{Name: "Redis sleeps 1 s (`DEBUG SLEEP`)", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		for range 2 {
			f.store.Do("DEBUG", "SLEEP", "1")
			time.Sleep(time.Second)
		}
	}},
	{Name: "Redis full (`maxmemory`, noeviction)", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		f.store.Do("CONFIG", "SET", "maxmemory", "1")
		time.Sleep(2 * time.Second)
		f.store.Do("CONFIG", "SET", "maxmemory", "0")
	}},
	{Name: "Redis read-only", cut: 3, happen: func(_ *testing.T, f *faultRig) {
		f.store.Do("REPLICAOF", "127.0.0.1", "1")
		time.Sleep(2 * time.Second)
		f.store.Do("REPLICAOF", "NO", "ONE")
	}},
	{Name: "connections of the services to Redis killed", cut: 3, short: true, happen: func(_ *testing.T, f *faultRig) {
		for range 10 {
			f.store.Do("CLIENT", "KILL", "TYPE", "normal")
			time.Sleep(100 * time.Millisecond)
		}
	}},
	{Name: "Redis restarts without persistence, then a service", cut: 3, losses: 1, happen: func(t *testing.T, f *faultRig) {
		f.store.Kill()
		time.Sleep(time.Second)
		f.store.Restart()
		f.services[0].kill()
		f.services[0].start(t)
	}},
}

// clusterFaults are those of a Cluster as the store.
var clusterFaults = []fault{
	{Name: "a master of the Cluster fails over", cut: 3, losses: 1, happen: func(t *testing.T, f *faultRig) {
		for _, s := range f.cluster.Servers[:3] {
			if s.Running() {
				s.Kill()
				break
			}
		}
		time.Sleep(time.Second) // until the Cluster has missed it
		require.Eventually(t, func() bool {
			return strings.Contains(f.cluster.Servers[5].Do("CLUSTER", "INFO"), "cluster_state:ok")
		}, 20*time.Second, 50*time.Millisecond)
	}},
}
