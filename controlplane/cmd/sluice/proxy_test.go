package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"github.com/rogpeppe/go-internal/testscript"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// proxy ADDRESS ID accepts|refuses|refuses=N|silent [manage=ADDRESS] [CERT KEY CA]
// connects to the xDS server and answers what it pushes until the script ends.
// It returns once the server has the stream.
func proxyCommand(ts *testscript.TestScript, neg bool, args []string) {
	address := args[0]
	id := args[1]
	manner := args[2]
	sluice := map[string]any{}
	if len(args) > 3 && strings.HasPrefix(args[3], "manage=") {
		sluice["manage"] = strings.TrimPrefix(args[3], "manage=")
		args = append(args[:3:3], args[4:]...)
	}
	creds, san := insecure.NewCredentials(), ""
	if len(args) > 3 {
		creds, san = clientTLS(ts, args[3], args[4], args[5])
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ts.Defer(func() { cancel(); _ = conn.Close() })
	established, stopTrying := context.WithTimeout(ctx, patience)
	defer stopTrying()
	stream, err := extensionv3.NewExtensionConfigDiscoveryServiceClient(conn).DeltaExtensionConfigs(ctx)
	if err == nil {
		err = stream.Send(first(id, sluice))
	}
	if neg {
		if err == nil {
			context.AfterFunc(established, cancel) // before the first revision nothing comes
			_, err = stream.Recv()
		}
		if err == nil || established.Err() != nil {
			ts.Fatalf("%s was let in", id)
		}
		return
	}
	ts.Check(err)
	go answer(stream, manner)
	for !connected(ts, id, san) {
		if established.Err() != nil {
			ts.Fatalf("%s is not connected", id)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// answer gives every push its answer.
func answer(stream extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsClient, manner string) {
	for {
		r, err := stream.Recv()
		if err != nil || manner == "silent" {
			return
		}
		a := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeURL, ResponseNonce: r.GetNonce()}
		refused, _ := strings.CutPrefix(manner, "refuses=")
		if manner == "refuses" || strings.HasPrefix(r.GetSystemVersionInfo(), refused+"-") {
			a.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "Unable to create Wasm plugin sluice"}
		}
		if stream.Send(a) != nil {
			return
		}
	}
}

// connected asks the command's own status, with the script's server and flags.
func connected(ts *testscript.TestScript, id, san string) bool {
	args := append([]string{"status", "--output", "json"}, strings.Fields(ts.Getenv("CLIENT_FLAGS"))...)
	if err := ts.Exec("sluice", args...); err != nil {
		return false
	}
	text := ts.ReadFile("stdout")
	named := san == "" || strings.Contains(text, fmt.Sprintf("%q: %q", "san", san)) || !strings.Contains(text, `"san"`)
	return named && strings.Contains(text, fmt.Sprintf("%q: %q", "node", id))
}

// clientTLS also returns the certificate's name.
func clientTLS(
	ts *testscript.TestScript, cert, key, ca string,
) (security credentials.TransportCredentials, san string) {
	pool := x509.NewCertPool()
	text, err := os.ReadFile(ts.MkAbs(ca))
	ts.Check(err)
	pool.AppendCertsFromPEM(text)
	pair, err := tls.LoadX509KeyPair(ts.MkAbs(cert), ts.MkAbs(key))
	ts.Check(err)
	security = credentials.NewTLS(&tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
	})
	return security, pair.Leaf.DNSNames[0]
}
