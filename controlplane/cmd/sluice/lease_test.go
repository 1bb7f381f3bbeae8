package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
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
	m := quota.Asks{
		Domain: args[1], Process: 1,
		Definitions: []quota.Definition{{ID: 1, Lease: quota.LeaseAuto, Windows: []limit.Window{
			{Algorithm: limit.FixedWindow, Limit: 10, PeriodNs: int64(time.Hour)},
		}}},
		Asks: []quota.Ask{{ID: 1, Parts: []quota.Part{{Definition: 1, Cost: units, Waiting: units}}}},
	}
	answer, err := exchange(conn, m.Append(nil))
	switch {
	case err != nil:
		fmt.Fprintln(ts.Stdout(), status.Code(err), status.Convert(err).Message())
	case answer.Result == quota.Granted:
		fmt.Fprintln(ts.Stdout(), "granted", answer.Grants[0].Units)
	default:
		fmt.Fprintln(ts.Stdout(), "result", answer.Result)
	}
}

func exchange(conn *grpc.ClientConn, message []byte) (quota.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+quota.Service+"/"+quota.Method)
	if err != nil {
		return quota.Answer{}, err
	}
	if err := stream.SendMsg(message); err != nil {
		return quota.Answer{}, err
	}
	var b []byte
	if err := stream.RecvMsg(&b); err != nil {
		return quota.Answer{}, err
	}
	var m quota.Answers
	if err := m.Decode(b); err != nil {
		return quota.Answer{}, err
	}
	return m.Answers[0], nil
}
