//go:build oracle

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// TestRateLimitChanges: a changed file is in force without a restart, and a broken one is not.
func TestRateLimitChanges(t *testing.T) { changes(t, front(t)) }

// TestOracleChanges: so it is with envoyproxy/ratelimit.
func TestOracleChanges(t *testing.T) { changes(t, incumbent(t)) }

func changes(t *testing.T, program string) {
	r := newRateLimiter(t, program, servertest.StartRedis(t, servertest.Redis(t)).Addr())
	limited := func(domain, requests string) string {
		return "domain: " + domain + "\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: " + requests + "}}]\n"
	}
	r.start(t, map[string]string{"a.yaml": limited("d", "5"), "b.yaml": limited("other", "1")})
	ask := func(domain, descriptor string) string {
		got := r.call(t.Context(), callOf(t, domain, descriptor))
		require.NotNil(t, got.response, got)
		return statusText(got.response.Statuses[0])
	}
	becomes := func(want, domain string) {
		eventually(t, 2*time.Second, want, func() bool { return ask(domain, "a=1 hits:0") == want })
	}
	loads := func(name string, n float64) {
		eventually(t, 2*time.Second, name, func() bool { return r.series(t)["ratelimit_service_config_load_"+name] >= n })
	}
	require.Equal(t, "ok, 4 of 5/year left", ask("d", "a=1"))
	r.write(t, "a.yaml", limited("d", "10")) // what was counted stays counted
	becomes("ok, 9 of 10/year left", "d")
	require.Equal(t, "ok, 8 of 10/year left", ask("d", "a=1"))
	r.write(t, "a.yaml", limited("d", "many"))
	loads("error", 1)
	require.Equal(t, "ok, 7 of 10/year left", ask("d", "a=1"))
	require.Equal(t, "ok, 0 of 1/year left", ask("other", "a=1"))
	require.True(t, answered("http://"+r.http+"/healthcheck"))
	r.write(t, "a.yaml", limited("d", "20"))
	becomes("ok, 17 of 20/year left", "d")
	require.NoError(t, os.Remove(filepath.Join(r.root, "ratelimit", "config", "b.yaml")))
	becomes("ok, no limit", "other")
	loads("success", 4)
}

func callOf(t *testing.T, domain string, descriptors ...string) *ratelimit.RateLimitRequest {
	request := &ratelimit.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		request.Descriptors = append(request.Descriptors, descriptorOf(t, text))
	}
	return request
}

// TestOracleOfBadCalls: calls that no Envoy makes are answered alike, and as well afterwards.
func TestOracleOfBadCalls(t *testing.T) {
	o := newOracle(t, incumbent(t), ours(t), 1)
	for _, r := range o.services {
		r.start(t, map[string]string{"a.yaml": `
domain: d
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 1000}}
- {key: b, value: "x*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 1000}}
`})
	}
	repeat := func(s string, n int) string { return strings.Repeat(s, n) }
	for name, request := range map[string]*ratelimit.RateLimitRequest{
		"1,000 descriptors":     callOf(t, "d", strings.Fields(repeat("a=1 b=x b=y ", 334))...),
		"1,000 entries":         callOf(t, "d", repeat("a=1 ", 1000)),
		"a value of 1 MB":       callOf(t, "d", "a="+repeat("v", 1<<20)),
		"a shared one":          callOf(t, "d", "b=x"+repeat("v", 1<<20)),
		"a key of 1 MB":         callOf(t, "d", repeat("k", 1<<20)+"=1"),
		"a domain of 1 MB":      callOf(t, repeat("d", 1<<20), "a=1"),
		"more than gRPC takes":  callOf(t, "d", "a="+repeat("v", 5<<20)),
		"control characters":    callOf(t, "d", "a=\x00\x01\x7f", "b=x\x00"),
		"an empty key":          callOf(t, "d", "=1", "=", "a="),
		"more hits than 32 bit": callOf(t, "d", "a=2 hits:5000000000", "a=2 hits:0"),
		"more hits than 63 bit": callOf(t, "d", "a=3 hits:18446744073709551615"),
	} {
		t.Run(name, func(t *testing.T) {
			answers, _ := o.pair(t, 0, request)
			require.Empty(t, unequal(answers[0], answers[1]), "theirs %.500s\nours   %.500s", answers[0], answers[1])
		})
	}
	t.Run("a key that is no UTF-8", func(t *testing.T) {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff")
		call := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "d")
		call = protowire.AppendBytes(protowire.AppendTag(call, 2, protowire.BytesType),
			protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry))
		theirs, ours := o.services[0].raw(t.Context(), call), o.services[1].raw(t.Context(), call)
		require.Error(t, theirs)
		require.Equal(t, status.Code(theirs), status.Code(ours), "theirs %s, ours %s", theirs, ours)
	})
	for _, r := range o.services {
		require.Equal(t, "ok, 999 of 1000/year left",
			statusText(r.call(t.Context(), callOf(t, "d", "a=last")).response.Statuses[0]))
	}
}

// raw sends bytes in the place of a call.
func (r *rateLimiter) raw(ctx context.Context, call []byte) error {
	var got []byte
	return r.conn.Invoke(ctx, ratelimit.RateLimitService_ShouldRateLimit_FullMethodName, &call, &got,
		grpc.ForceCodecV2(bytesCodec{}))
}

// bytesCodec sends and receives bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
