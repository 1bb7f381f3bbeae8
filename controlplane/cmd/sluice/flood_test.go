package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	leaseMethod = "/" + quota.Service + "/" + quota.Method
	// floodFor is how long each flood lasts. mostFlooded is what serve takes at most: each of the
	// 200 streams has one message decoded, and a MiB in all.
	floodFor    = 3 * time.Second
	mostFlooded = 2 * mostMemory
)

// floodWindows are as many of an algorithm as a definition has at most.
func floodWindows(a limit.Algorithm) (windows []limit.Window) {
	for i := range quota.MaxWindows {
		windows = append(windows, limit.Window{
			Algorithm: a, Limit: 500, PeriodNs: int64(time.Hour) + int64(i), Units: 512,
		})
	}
	return windows
}

// floodMessage fills a message with asks of so many parts, each for a key of its own.
func floodMessage(n, parts int, part quota.Part) (message []byte) {
	for i := 0; ; i++ {
		ask := quota.Ask{ID: uint32(i)}
		for p := range parts {
			part.Key = quota.KeyOf(uint64(n), uint64(i*parts+p))
			ask.Parts = append(ask.Parts, part)
		}
		m := quota.Asks{Asks: []quota.Ask{ask}}
		longer := m.Append(message)
		if len(longer) > quota.MaxMessageBytes {
			return message
		}
		message = longer
	}
}

// floods are what 200 streams send as fast as they may, and never read an answer.
func floods() map[string][][]byte {
	parts := map[string]struct {
		parts int
		quota.Part
	}{
		"looks":        {1, quota.Part{Inspect: true}},
		"large groups": {quota.MaxParts, quota.Part{Inspect: true}},
		"grants":       {1, quota.Part{Cost: 1}},
		"logs":         {1, quota.Part{Cost: 500}},
	}
	all := map[string][][]byte{}
	for name, p := range parts {
		for n := range 4 { // few keys: what the store holds has a bound of its own
			all[name] = append(all[name], floodMessage(n, p.parts, p.Part))
		}
	}
	for i := range 32 {
		d := quota.Definition{ID: 1, Counter: [16]byte{byte(i)}, Windows: floodWindows(limit.FixedWindow)}
		ask := quota.Ask{Parts: []quota.Part{{Definition: 1, Cost: 1}}}
		m := quota.Asks{Definitions: []quota.Definition{d}, Asks: []quota.Ask{ask}}
		all["definitions"] = append(all["definitions"], m.Append(nil))
	}
	return all
}

// TestQuotaFlood: streams that ask and never read take a MiB each at most, and an honest proxy,
// which asks little, waits for less than one that asks much and reads does for a message. How
// long that is depends on the machine.
func TestQuotaFlood(t *testing.T) {
	for name, messages := range floods() {
		t.Run(name, func(t *testing.T) {
			s := startServe(t, t.TempDir())
			algorithm := limit.FixedWindow
			if name == "logs" {
				algorithm = limit.SlidingWindowLog
			}
			first := quota.Asks{Domain: "flood", Process: 1, Definitions: []quota.Definition{{Windows: floodWindows(algorithm)}}}
			stop := s.attack(t, leaseMethod, func(_, n int) []byte {
				if n == 0 {
					return first.Append(nil)
				}
				return messages[n%len(messages)]
			})
			defer stop()
			greedy := s.greedy(t, algorithm)
			took := s.honestAsks(t)
			each := greedy()
			t.Logf("%d asks of an honest proxy: half within %s, 99 of 100 within %s, all within %s; "+
				"one that asks much waits %s for a message",
				len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], each)
			proctest.Below(t, proctest.Memory(t, proctest.StatusOf(s.process.Pid), proctest.Peak), mostFlooded)
			proctest.Below(t, took[len(took)/2], each)
		})
	}
}

// greedy asks as much as a message takes, and reads the answers, until it is called again: it
// returns how long a message took.
func (s server) greedy(t *testing.T, algorithm limit.Algorithm) (each func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.connection(t, hostileIP).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		leaseMethod, grpc.ForceCodec(bytesCodec{}))
	require.NoError(t, err)
	first := quota.Asks{Domain: "flood", Process: 2, Definitions: []quota.Definition{{Windows: floodWindows(algorithm)}}}
	require.NoError(t, stream.SendMsg(first.Append(nil)))
	message := floodMessage(len(floods()), 1, quota.Part{Inspect: true})
	var asks quota.Asks
	require.NoError(t, asks.Decode(message))
	answered := make(chan int)
	began := time.Now()
	go func() {
		n := 0
		defer func() { answered <- n }()
		for {
			if n%len(asks.Asks) == 0 && stream.SendMsg(message) != nil {
				return
			}
			var b []byte
			var m quota.Results
			if stream.RecvMsg(&b) != nil || m.Decode(b) != nil {
				return
			}
			n += len(m.Results)
		}
	}()
	return func() time.Duration {
		took := time.Since(began)
		cancel()
		messages := float64(<-answered) / float64(len(asks.Asks))
		return time.Duration(float64(took) / max(messages, 1))
	}
}

// honestAsks asks as a proxy does, one after the other, and returns how long each took, in order
// of that.
func (s server) honestAsks(t *testing.T) (took []time.Duration) {
	t.Helper()
	ask, _ := s.leases(t)
	for until := time.Now().Add(floodFor); time.Now().Before(until); time.Sleep(2 * time.Millisecond) {
		began := time.Now()
		ask()
		took = append(took, time.Since(began))
		if proctest.Memory(t, proctest.StatusOf(s.process.Pid), proctest.Resident) > mostFlooded {
			break
		}
	}
	slices.Sort(took)
	return took
}

// TestHostileStore: a store that announces two billion elements is refused, and does not
// end the process for lack of memory.
func TestHostileStore(t *testing.T) {
	for _, reply := range []string{"*2000000000\r\n", "%2000000000\r\n", "$2000000000\r\n", "$-5\r\n"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = c.Read(make([]byte, 1))
					_, _ = io.WriteString(c, reply)
					_, _ = io.Copy(io.Discard, c)
				}()
			}
		}()
		cmd := exec.Command("sh", "-c", `ulimit -v 8000000; exec "$0" "$@"`, os.Args[0], "quota",
			"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--quota-store", "redis://"+l.Addr().String())
		cmd.Env = append(os.Environ(), asSluice+"=1")
		said, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%.500s", said)
		require.Contains(t, string(said), "its reply is none of Redis', or too large")
	}
}
