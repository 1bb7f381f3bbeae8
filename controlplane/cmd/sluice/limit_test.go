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

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
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

// hourlyConfig writes a configuration with so many calls an hour for each client.
func hourlyConfig(t *testing.T, limit int) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(hourly("shop", "client", limit)), 0o600))
	return file
}

// A call may have 4 MiB.
func TestLargeCalls(t *testing.T) {
	s := startWith(t, "", t.TempDir(), "--ratelimit-config", hourlyConfig(t, 3))
	conn := s.connection(t, honestIP)
	for size, want := range map[int]string{3 << 20: "OK remaining 2", 5 << 20: "ResourceExhausted"} {
		require.Contains(t, makeCall(t.Context(), conn, "shop", "client", strings.Repeat("x", size)), want)
	}
}

// A serve that stops answers each call that reaches it. Those that it has not taken fail to connect
// elsewhere, so that another one could have answered them.
func TestNoCallIsLost(t *testing.T) {
	s := startWith(t, "", t.TempDir(), "--ratelimit-config", hourlyConfig(t, 1_000_000))
	ask, stream := s.leases(t)
	ask()
	var answered atomic.Int64
	const connections, calls = 4, 16
	errs := make(chan error, connections*calls)
	for range connections {
		client := rlsv3.NewRateLimitServiceClient(s.connection(t, honestIP))
		for i := range calls {
			go func() {
				for {
					_, err := client.ShouldRateLimit(t.Context(), limitRequest("shop", "client", fmt.Sprint(i)))
					if err != nil {
						errs <- err
						return
					}
					answered.Add(1)
				}
			}()
		}
	}
	require.Eventually(t, func() bool { return answered.Load() > 1000 }, patience, 1e6)
	require.NoError(t, s.process.Signal(syscall.SIGTERM))
	for range cap(errs) {
		require.ErrorContains(t, <-errs, "connection refused")
	}
	var b []byte
	require.ErrorContains(t, stream.RecvMsg(&b), "the quota service is shutting down")
	state, err := s.process.Wait()
	require.NoError(t, err)
	require.True(t, state.Success())
}
