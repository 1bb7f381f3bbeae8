package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// ratelimit is a process that was called by that name, with the settings of envoyproxy/ratelimit.
type ratelimit struct {
	http, grpc, prometheus string // addresses
	process                *os.Process
	log                    *proctest.Log
}

// startRatelimit starts one on free ports, and waits until it listens for calls.
func startRatelimit(t *testing.T, env ...string) ratelimit {
	t.Helper()
	r := newRatelimit(t, env...)
	r.wait(t)
	return r
}

// wait waits until it listens.
func (r ratelimit) wait(t *testing.T) {
	t.Helper()
	answers := func() bool { return r.get(t, "http://"+r.http+"/healthcheck") != "" }
	require.Eventually(t, answers, patience, 10*time.Millisecond)
}

// newRatelimit starts one on free ports.
func newRatelimit(t *testing.T, env ...string) ratelimit {
	t.Helper()
	free, err := ports.Free(3)
	require.NoError(t, err)
	at := func(i int) string { return fmt.Sprint("127.0.0.1:", free[i]) }
	r := ratelimit{http: at(0), grpc: at(1), prometheus: at(2), log: &proctest.Log{}}
	cmd := exec.Command(os.Args[0])
	cmd.Args = []string{"/bin/ratelimit"}
	cmd.Env = append([]string{
		asSluice + "=1", "HOST=127.0.0.1", fmt.Sprint("PORT=", free[0]), "GRPC_HOST=127.0.0.1",
		fmt.Sprint("GRPC_PORT=", free[1]), "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + r.prometheus,
	}, env...)
	cmd.Stderr = r.log
	require.NoError(t, cmd.Start())
	r.process = cmd.Process
	t.Cleanup(func() {
		_ = r.process.Kill() // told to stop, it would take calls for three seconds more
		_ = cmd.Wait()
		require.NotContains(t, r.log.String(), "s3cr3t")
		if t.Failed() {
			t.Log(r.log)
		}
	})
	return r
}

// get returns the body of an answer, empty if there is none yet.
func (r ratelimit) get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text)
}

// call makes a call with one entry, such as "shop client a", and returns the answer as text.
func (r ratelimit) call(t *testing.T, what string, security credentials.TransportCredentials) string {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.grpc, grpc.WithTransportCredentials(security))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	words := strings.Fields(what)
	return makeCall(ctx, conn, words[0], words[1], words[2])
}

// runtimeFolder writes the files of RUNTIME_ROOT, and returns the settings for it and a Redis.
func runtimeFolder(t *testing.T, redis string, files map[string]string) []string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return []string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis, "RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit",
	}
}

// yearly is a domain in which each value of a key has so many calls a year, which ends in no test.
func yearly(domain, key string, limit int) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, rate_limit: {unit: year, requests_per_unit: %d}}\n",
		domain, key, limit)
}

// settingsCase are settings, and what calls meet under them, each in turn.
type settingsCase struct {
	name    string
	env     []string
	calls   []string // DOMAIN KEY VALUE: a regular expression for the answer
	metrics []string // lines
}

var settingsCases = []settingsCase{
	{
		name: "none but where things are",
		calls: []string{
			"shop client a: ^OK remaining 2$", "shop client a: ^OK remaining 1$", "shop client a: ^OK remaining 0$",
			"shop client a: ^OVER_LIMIT remaining 0$", "shop other a: ^OK remaining 0$", "none client a: ^OK remaining 0$",
		},
		metrics: []string{
			`ratelimit_service_rate_limit_total_hits{domain="shop",key1="client",key2=""} 4`,
			`ratelimit_service_rate_limit_over_limit{domain="shop",key1="client",key2=""} 1`,
			`ratelimit_service_rate_limit_near_limit{domain="shop",key1="client",key2=""} 1`,
			`ratelimit_service_config_load_success 1`,
		},
	},
	{
		name:    "NEAR_LIMIT_RATIO",
		env:     []string{"NEAR_LIMIT_RATIO=0.4"},
		calls:   []string{"shop client near: ^OK remaining 2$", "shop client near: ^OK remaining 1$"},
		metrics: []string{`ratelimit_service_rate_limit_near_limit{domain="shop",key1="client",key2=""} 1`},
	},
	{
		name:  "LIMIT_RESPONSE_HEADERS_ENABLED",
		env:   []string{"LIMIT_RESPONSE_HEADERS_ENABLED=true"},
		calls: []string{`shop client h: ^OK remaining 2 RateLimit-Limit=3 RateLimit-Remaining=2 RateLimit-Reset=\d+$`},
	},
	{
		name: "the names of the headers",
		env: []string{
			"LIMIT_RESPONSE_HEADERS_ENABLED=1", "LIMIT_LIMIT_HEADER=l", "LIMIT_REMAINING_HEADER=r", "LIMIT_RESET_HEADER=t",
		},
		calls: []string{`shop client h: ^OK remaining 1 l=3 r=1 t=\d+$`},
	},
	{
		name:  "CACHE_KEY_PREFIX",
		env:   []string{"CACHE_KEY_PREFIX=p:"},
		calls: []string{"shop client a: ^OK remaining 2$"},
	},
	{
		name:  "SHADOW_MODE",
		env:   []string{"SHADOW_MODE=true"},
		calls: []string{"shop client a: ^OK remaining 0$"}, // over the limit by the first case
	},
	{
		name:  "QUOTA_MODE",
		env:   []string{"QUOTA_MODE=true"},
		calls: []string{"shop client a: ^OVER_LIMIT remaining 0$"}, // all quotas are used up
	},
	{
		name:  "RESPONSE_DYNAMIC_METADATA",
		env:   []string{"RESPONSE_DYNAMIC_METADATA=true"},
		calls: []string{"shop client m: ^OK remaining 2 metadata$"},
	},
	{
		name:  "another RUNTIME_APPDIRECTORY",
		env:   []string{"RUNTIME_APPDIRECTORY=other"},
		calls: []string{"shop client a: ^OK remaining 0$", "else client a: ^OK remaining 2$"},
	},
	{
		name:  "MERGE_DOMAIN_CONFIG",
		env:   []string{"RUNTIME_APPDIRECTORY=parts", "MERGE_DOMAIN_CONFIG=true"},
		calls: []string{"parts client a: ^OK remaining 2$", "parts more a: ^OK remaining 6$"},
	},
	{
		name:  "RUNTIME_WATCH_ROOT=false, without dot files",
		env:   []string{"RUNTIME_WATCH_ROOT=false", "RUNTIME_APPDIRECTORY=dots", "RUNTIME_IGNOREDOTFILES=true"},
		calls: []string{"dots client a: ^OK remaining 2$", "hidden client a: ^OK remaining 0$"},
	},
	{
		name:    "PROMETHEUS_PATH",
		env:     []string{"PROMETHEUS_PATH=/stats"},
		calls:   []string{"shop client path: ^OK remaining 2$"},
		metrics: []string{`ratelimit_service_config_load_success 1`},
	},
}

// TestRatelimitSettings holds what each setting does, with real files and a real Redis, which all
// cases share.
func TestRatelimitSettings(t *testing.T) {
	redis := servertest.StartRedis(t, servertest.Redis(t))
	base := runtimeFolder(t, redis.Addr(), map[string]string{
		"ratelimit/config/shop.yaml":         yearly("shop", "client", 3),
		"ratelimit/other/else.yaml":          yearly("else", "client", 3),
		"ratelimit/parts/1.yaml":             yearly("parts", "client", 3),
		"ratelimit/parts/2.yaml":             yearly("parts", "more", 7),
		"ratelimit/dots/dots.yaml":           yearly("dots", "client", 3),
		"ratelimit/dots/..data/hidden.yaml":  yearly("hidden", "client", 3),
		"ratelimit/dots/.other/broken.yaml":  "domain: [",
		"ratelimit/unused/not-a-config.yaml": "domain: [",
	})
	for _, c := range settingsCases {
		t.Run(c.name, func(t *testing.T) {
			r := startRatelimit(t, append(base, c.env...)...)
			for _, call := range c.calls {
				what, answer, _ := strings.Cut(call, ": ")
				require.Regexp(t, answer, r.call(t, what, insecure.NewCredentials()), what)
			}
			path := "/metrics"
			if c.name == "PROMETHEUS_PATH" {
				path = "/stats"
			}
			metrics := strings.Split(r.get(t, "http://"+r.prometheus+path), "\n")
			require.Subset(t, metrics, c.metrics)
			require.Equal(t, "OK", r.get(t, "http://"+r.http+"/healthcheck"))
		})
	}
}

// The ways to a Redis, by REDIS_TYPE, REDIS_URL, REDIS_AUTH and the settings of TLS.
func TestRatelimitReachesRedis(t *testing.T) {
	const password = "s3cr3t/#?@%&"
	cert, key := certtest.Files(t)
	socket := filepath.Join(t.TempDir(), "redis.sock")
	plain := servertest.StartRedis(t, servertest.Redis(t), "--unixsocket", socket, "--requirepass", "")
	plain.Do("ACL", "SETUSER", "limiter", "on", ">"+password, "~*", "+@all")
	secure := servertest.StartTLS(t, servertest.Redis(t), password, cert, key)
	elsewhere := certtest.Issue(nil, []string{"elsewhere.test"}, func(c *x509.Certificate) { c.IPAddresses = nil })
	otherCert, otherKey := writePair(t, t.TempDir(), "elsewhere", elsewhere)
	other := servertest.StartTLS(t, servertest.Redis(t), password, otherCert, otherKey)
	secure.Do("CONFIG", "SET", "tls-auth-clients", "yes")
	_, sentinels := servertest.StartSentinel(t, servertest.Redis(t), password)
	cluster := servertest.StartCluster(t, servertest.Redis(t))
	at := strings.TrimSuffix(strings.TrimPrefix(sentinels, "redis+sentinel://"), "/"+servertest.SentinelName)
	withTLS := []string{
		"REDIS_URL=" + secure.Addr(), "REDIS_AUTH=" + password, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + cert,
		"REDIS_TLS_CLIENT_CERT=" + cert, "REDIS_TLS_CLIENT_KEY=" + key,
	}
	for name, env := range map[string][]string{
		"a host":           {"REDIS_URL=" + plain.Addr()},
		"a URL":            {"REDIS_URL=redis://limiter:s3cr3t%2F%23%3F%40%25&@" + plain.Addr() + "/1"},
		"a user":           {"REDIS_URL=" + plain.Addr(), "REDIS_AUTH=limiter:" + password},
		"a socket":         {"REDIS_SOCKET_TYPE=", "REDIS_URL=" + socket},
		"a socket, a user": {"REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + socket, "REDIS_AUTH=limiter:" + password},
		"TLS":              withTLS,
		"TLS, any name": {
			"REDIS_URL=" + other.Addr(), "REDIS_AUTH=" + password, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + otherCert,
			"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true",
		},
		"Sentinel": {
			"REDIS_TYPE=sentinel", "REDIS_URL=" + servertest.SentinelName + "," + at, "REDIS_AUTH=" + password,
		},
		"Cluster": {"REDIS_TYPE=CLUSTER", "REDIS_URL=" + strings.TrimPrefix(cluster.URL(), "redis+cluster://")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := runtimeFolder(t, "", map[string]string{"ratelimit/config/c.yaml": yearly("shop", "client", 3)})
			r := startRatelimit(t, append(base, env...)...)
			client := strings.ReplaceAll(name, " ", "")
			require.Equal(t, "OK remaining 2", r.call(t, "shop client "+client, insecure.NewCredentials()))
		})
	}
}

// writePair writes a certificate and its key into a folder.
func writePair(t *testing.T, dir, name string, c *tls.Certificate) (cert, key string) {
	t.Helper()
	text, secret := certtest.PEM(c)
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	require.NoError(t, os.WriteFile(cert, []byte(text), 0o600))
	require.NoError(t, os.WriteFile(key, []byte(secret), 0o600))
	return cert, key
}

// Calls over TLS: of clients with a certificate that the authority has issued, for a name.
func TestRatelimitServesTLS(t *testing.T) {
	dir := t.TempDir()
	authority := certtest.Issue(nil, nil)
	ca, _ := writePair(t, dir, "ca", authority)
	cert, key := writePair(t, dir, "server", certtest.Issue(authority, []string{"server.test"}))
	redis := servertest.StartRedis(t, servertest.Redis(t))
	config := map[string]string{"ratelimit/config/c.yaml": yearly("shop", "client", 3)}
	env := append(runtimeFolder(t, redis.Addr(), config),
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+cert, "GRPC_SERVER_TLS_KEY="+key, "GRPC_CLIENT_TLS_CACERT="+ca,
		"GRPC_CLIENT_TLS_SAN=edge.test", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true")
	r := startRatelimit(t, env...)
	as := func(c ...tls.Certificate) credentials.TransportCredentials {
		return credentials.NewTLS(&tls.Config{
			RootCAs: certtest.Pool(authority), Certificates: c, MinVersion: tls.VersionTLS12,
		})
	}
	edge := *certtest.Issue(authority, []string{"edge.test"})
	require.Equal(t, "OK remaining 2", r.call(t, "shop client a", as(edge)))
	require.Contains(t, r.call(t, "shop client a", as(*certtest.Issue(authority, []string{"else.test"}))),
		`PermissionDenied domain "shop": x509: certificate is valid for else.test, not edge.test`)
	require.Contains(t, r.call(t, "shop client a", as()), "Unavailable")
	// A certificate that was renewed is shown within seconds.
	writePair(t, dir, "server", certtest.Issue(authority, []string{"newer.test"}))
	shown := func() string {
		conn, err := tls.Dial("tcp", r.grpc, &tls.Config{
			RootCAs: certtest.Pool(authority), Certificates: []tls.Certificate{edge}, NextProtos: []string{"h2"},
			MinVersion: tls.VersionTLS12,
		})
		require.NoError(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	require.Eventually(t, func() bool { return shown() == "newer.test" }, patience, 100*time.Millisecond)
}

// configServer is an xDS server with one configuration.
type configServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streams chan configStream
}

// configStream is what a client has told the server.
type configStream struct {
	first   *discoveryv3.DiscoveryRequest
	headers metadata.MD
	names   []string // of the client's certificate
}

// serveConfig starts a server at an address. Its clients need a certificate of the authority.
func serveConfig(t *testing.T, at string, authority, cert *tls.Certificate) *configServer {
	t.Helper()
	c := &configServer{streams: make(chan configStream, 100)}
	xds := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12,
		ClientCAs: certtest.Pool(authority), ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(xds, c)
	l, err := net.Listen("tcp", at)
	require.NoError(t, err)
	go func() { _ = xds.Serve(l) }()
	t.Cleanup(xds.Stop)
	return c
}

// StreamAggregatedResources answers the first request.
func (c *configServer) StreamAggregatedResources(
	s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	headers, _ := metadata.FromIncomingContext(s.Context())
	from, _ := peer.FromContext(s.Context())
	c.streams <- configStream{first, headers, from.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].DNSNames}
	config, err := anypb.New(&rlsconfv3.RateLimitConfig{
		Name: "shop", Domain: "shop", Descriptors: []*rlsconfv3.RateLimitDescriptor{{
			Key: "client", RateLimit: &rlsconfv3.RateLimitPolicy{Unit: rlsconfv3.RateLimitUnit_YEAR, RequestsPerUnit: 3},
		}},
	})
	if err != nil {
		return err
	}
	answer := &discoveryv3.DiscoveryResponse{
		VersionInfo: "1", Nonce: "1", TypeUrl: first.GetTypeUrl(), Resources: []*anypb.Any{config},
	}
	if err := s.Send(answer); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// The configuration by xDS, with mutual TLS. The server comes later: without
// FORCE_START_WITHOUT_INITIAL_CONFIG nothing listens until then.
func TestRatelimitConfigByXDS(t *testing.T) {
	dir := t.TempDir()
	authority := certtest.Issue(nil, nil)
	ca, _ := writePair(t, dir, "ca", authority)
	cert, key := writePair(t, dir, "client", certtest.Issue(authority, []string{"ratelimit.test"}))
	redis := servertest.StartRedis(t, servertest.Redis(t))
	free, err := ports.Free(1)
	require.NoError(t, err)
	at := fmt.Sprint("127.0.0.1:", free[0])
	env := []string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Addr(), "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + at,
		"CONFIG_GRPC_XDS_NODE_ID=node", "CONFIG_GRPC_XDS_NODE_METADATA=zone=z,rack=r",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=x-token:t", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + cert, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + key,
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + ca, "CONFIG_GRPC_XDS_SERVER_TLS_SAN=xds.test",
	}
	early := startRatelimit(t, append(env, "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true")...)
	answer := early.call(t, "shop client a", insecure.NewCredentials())
	require.Contains(t, answer, "no rate limit configuration is loaded yet")
	require.Equal(t, "no domain has a rate limit configuration\n", early.get(t, "http://"+early.http+"/healthcheck"))
	waiting := newRatelimit(t, env...)
	require.Never(t, func() bool { return answers(waiting.http) }, 200*time.Millisecond, 20*time.Millisecond)

	name := certtest.Issue(authority, []string{"xds.test"}, func(c *x509.Certificate) { c.IPAddresses = nil })
	server := serveConfig(t, at, authority, name)
	for range 2 {
		stream := <-server.streams
		require.Equal(t, "node", stream.first.GetNode().GetId())
		require.Equal(t, "z", stream.first.GetNode().GetMetadata().AsMap()["zone"])
		require.Equal(t, "r", stream.first.GetNode().GetMetadata().AsMap()["rack"])
		require.Equal(t, []string{"t"}, stream.headers.Get("x-token"))
		require.Equal(t, []string{"ratelimit.test"}, stream.names)
	}
	waiting.wait(t)
	require.Equal(t, "OK remaining 2", waiting.call(t, "shop client a", insecure.NewCredentials()))
	require.Eventually(t, func() bool {
		return early.get(t, "http://"+early.http+"/healthcheck") == "OK"
	}, patience, 20*time.Millisecond)
	require.Equal(t, "OK remaining 1", early.call(t, "shop client a", insecure.NewCredentials()))
}

// serve takes the configuration by xDS too, and shows its own certificate.
func TestServeTakesConfigByXDS(t *testing.T) {
	dir := t.TempDir()
	authority := certtest.Issue(nil, nil)
	ca, _ := writePair(t, dir, "ca", authority)
	cert, key := writePair(t, dir, "serve", certtest.Issue(authority, []string{"serve.test"}))
	free, err := ports.Free(1)
	require.NoError(t, err)
	at := fmt.Sprint("127.0.0.1:", free[0])
	server := serveConfig(t, at, authority, certtest.Issue(authority, nil))
	s := startWith(t, "", t.TempDir(), "--tls-cert", cert, "--tls-key", key,
		"--ratelimit-xds", at, "--ratelimit-xds-ca", ca, "--ratelimit-node", "here")
	stream := <-server.streams
	require.Equal(t, "here", stream.first.GetNode().GetId())
	require.Equal(t, []string{"serve.test"}, stream.names)
	s.tls = &tls.Config{RootCAs: certtest.Pool(authority), MinVersion: tls.VersionTLS12}
	conn := s.connection(t, honestIP)
	call := func() string { return makeCall(t.Context(), conn, "shop", "client", "a") }
	require.Eventually(t, func() bool { return call() == "OK remaining 2" }, patience, 10*time.Millisecond)
}
