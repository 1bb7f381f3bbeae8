package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// lease ADDRESS DOMAIN UNITS [CERT KEY CA] asks for units of a limit of ten an hour,
// as a proxy does, and prints what it got.
func lease(ts *testscript.TestScript, _ bool, args []string) {
	security := insecure.NewCredentials()
	if len(args) > 3 {
		security, _ = clientTLS(ts, args[3], args[4], args[5])
	}
	conn, err := grpc.NewClient("passthrough:///"+args[0], grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
	ts.Check(err)
	defer conn.Close()
	units := uint32(args[2][0] - '0')
	first := firstMessage(args[1])
	first.Asks = []quota.Ask{{ID: 1, Parts: []quota.Part{{Definition: 1, Cost: units, Waiting: units}}}}
	answer, err := exchange(conn, first.Append(nil))
	switch {
	case err != nil:
		fmt.Fprintln(ts.Stdout(), status.Code(err), status.Convert(err).Message())
	case answer.Outcome == quota.Granted:
		fmt.Fprintln(ts.Stdout(), "granted", answer.Grants[0].Units)
	default:
		fmt.Fprintln(ts.Stdout(), "result", answer.Outcome)
	}
}

// firstMessage is a stream's first message, without asks.
func firstMessage(domain string) quota.Asks {
	return quota.Asks{
		Domain: domain, Process: 1,
		Definitions: []quota.Definition{{ID: 1, Lease: quota.LeaseAuto, Windows: []limit.Window{
			{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: int64(time.Hour)},
		}}},
	}
}

// leases opens a stream, on which ask asks for a unit as a proxy does.
func (s server) leases(t *testing.T) (ask func(), stream grpc.ClientStream) {
	t.Helper()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := s.connection(t, honestIP).NewStream(t.Context(), both, leaseMethod, grpc.ForceCodec(bytesCodec{}))
	require.NoError(t, err)
	m := firstMessage("shop")
	return func() {
		m.Asks = []quota.Ask{{ID: 1, Parts: []quota.Part{{Definition: 1, Cost: 1, Waiting: 1}}}}
		require.NoError(t, stream.SendMsg(m.Append(nil)))
		m = quota.Asks{}
		var b []byte
		require.NoError(t, stream.RecvMsg(&b))
	}, stream
}

func exchange(conn *grpc.ClientConn, message []byte) (quota.AskResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, leaseMethod)
	if err != nil {
		return quota.AskResult{}, err
	}
	if err := stream.SendMsg(message); err != nil && !errors.Is(err, io.EOF) { // at io.EOF RecvMsg returns why
		return quota.AskResult{}, err
	}
	var b []byte
	if err := stream.RecvMsg(&b); err != nil {
		return quota.AskResult{}, err
	}
	var m quota.Results
	if err := m.Decode(b); err != nil {
		return quota.AskResult{}, err
	}
	return m.Results[0], nil
}

// TestStreamsDrain: a serve that stops tells the streams, and does not wait for them to
// end by themselves.
func TestStreamsDrain(t *testing.T) {
	s := startServe(t, t.TempDir())
	_, err := s.apply("version: 1\nrules: []\n")
	require.NoError(t, err)
	client := extensionv3.NewExtensionConfigDiscoveryServiceClient(s.connection(t, honestIP))
	policies, err := client.DeltaExtensionConfigs(t.Context())
	require.NoError(t, err)
	require.NoError(t, policies.Send(first("localhost", nil)))
	_, err = policies.Recv()
	require.NoError(t, err)
	ask, stream := s.leases(t)
	ask()
	require.NoError(t, s.process.Signal(syscall.SIGTERM))
	var b []byte
	err = stream.RecvMsg(&b)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "the quota service is shutting down")
	_, err = policies.Recv()
	require.ErrorContains(t, err, "control plane is shutting down")
	_, err = s.process.Wait()
	require.NoError(t, err)
}
