package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// limitRequest is a call with one entry.
func limitRequest(domain, key, value string) *rlsv3.RateLimitRequest {
	entry := &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value}
	return &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry}},
	}}
}

// limitCall is the command limit ADDRESS DOMAIN KEY VALUE [CERT KEY CA]: it makes a rate limit call,
// as Envoy does, and prints the answer.
func limitCall(ts *testscript.TestScript, _ bool, args []string) {
	security := insecure.NewCredentials()
	if len(args) > 4 {
		security, _ = clientTLS(ts, args[4], args[5], args[6])
	}
	conn, err := grpc.NewClient("passthrough:///"+args[0], grpc.WithTransportCredentials(security))
	ts.Check(err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	fmt.Fprintln(ts.Stdout(), makeCall(ctx, conn, args[1], args[2], args[3]))
}

// makeCall returns what answers a call: the code, what remains, the headers and whether there is
// metadata; or the error.
func makeCall(ctx context.Context, conn *grpc.ClientConn, domain, key, value string) string {
	answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, limitRequest(domain, key, value))
	if err != nil {
		return fmt.Sprint(status.Code(err), " ", status.Convert(err).Message())
	}
	text := answer.GetOverallCode().String()
	for _, s := range answer.GetStatuses() {
		text += fmt.Sprint(" remaining ", s.GetLimitRemaining())
	}
	for _, h := range answer.GetResponseHeadersToAdd() {
		text += " " + h.GetKey() + "=" + h.GetValue()
	}
	if answer.GetDynamicMetadata() != nil {
		text += " metadata"
	}
	return text
}

// yearlyConfig writes a configuration with so many calls a year for each client.
func yearlyConfig(t *testing.T, limit int) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(yearly("shop", "client", limit)), 0o600))
	return file
}

// A call may have 4 MiB.
func TestLargeCalls(t *testing.T) {
	s := startWith(t, "", t.TempDir(), "--ratelimit-config", yearlyConfig(t, 3))
	conn := s.connection(t, honestIP)
	for size, want := range map[int]string{3 << 20: "OK remaining 2", 5 << 20: "ResourceExhausted"} {
		require.Contains(t, makeCall(t.Context(), conn, "shop", "client", strings.Repeat("x", size)), want)
	}
}

// A serve that stops answers each call that reaches it. Those that it has not taken fail to connect
// elsewhere, so that another one could have answered them.
func TestNoCallIsLost(t *testing.T) {
	s := startWith(t, "", t.TempDir(), "--ratelimit-config", yearlyConfig(t, 1_000_000))
	ask, stream := s.leases(t)
	ask()
	stopUnderCalls(t, s.process, func() *grpc.ClientConn { return s.connection(t, honestIP) })
	var b []byte
	require.ErrorContains(t, stream.RecvMsg(&b), "the quota service is shutting down")
	state, err := s.process.Wait()
	require.NoError(t, err)
	require.True(t, state.Success())
}

// So does one that is called ratelimit, and all that it answered is in Redis.
func TestNoCallOfRatelimitIsLost(t *testing.T) {
	redis := servertest.StartRedis(t, servertest.Redis(t))
	config := yearly("shop", "client", 1_000_000)
	env := runtimeFolder(t, redis.Addr(), map[string]string{"ratelimit/config/c.yaml": config})
	r := startRatelimit(t, env...)
	answered := stopUnderCalls(t, r.process, func() *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///"+r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	})
	next := startRatelimit(t, env...)
	require.Equal(t, fmt.Sprint("OK remaining ", 1_000_000-answered-1),
		next.call(t, "shop client a", insecure.NewCredentials()))
}

// stopUnderCalls stops a process while it is called on several connections, and returns how many
// calls it has answered.
func stopUnderCalls(t *testing.T, process *os.Process, connect func() *grpc.ClientConn) int64 {
	t.Helper()
	const connections, calls = 4, 16
	var answered atomic.Int64
	errs := make(chan error, connections*calls)
	for range connections {
		client := rlsv3.NewRateLimitServiceClient(connect())
		for range calls {
			go func() {
				for {
					_, err := client.ShouldRateLimit(t.Context(), limitRequest("shop", "client", "a"))
					if err != nil {
						errs <- err
						return
					}
					answered.Add(1)
				}
			}()
		}
	}
	require.Eventually(t, func() bool { return answered.Load() > 1000 }, patience, time.Millisecond)
	stopped := time.Now()
	require.NoError(t, process.Signal(syscall.SIGTERM))
	for range cap(errs) {
		require.ErrorContains(t, <-errs, "connection refused")
		require.GreaterOrEqual(t, time.Since(stopped), 3*time.Second, "health checks see first that it stops")
	}
	return answered.Load()
}
