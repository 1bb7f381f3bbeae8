package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/build/xdstest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const good = `version: 1
domain: shop
rules:
  - name: per-user
    key: [{header: x-user-id}]
    missing_key: deny
    limits: ["10/1m"]
`

type fixture struct {
	t      *testing.T
	server *server
	store  *store.Bolt
	xds    *xds.Server
	url    string
	grpc   string
	hangUp func() // on all proxies, for good
}

// newFixture starts a server, one that wants the token if there is one.
func newFixture(t *testing.T, token string) *fixture {
	t.Helper()
	return newFixtureWith(t, func(o *Options) {
		if token != "" {
			o.Identify = func(r *http.Request) (access.Caller, bool) {
				known := strings.EqualFold(r.Header.Get("Authorization"), "Bearer "+token)
				return access.Caller{Name: "token test", Role: access.Admin}, known
			}
		}
	})
}

func newFixtureWith(t *testing.T, with func(*Options)) *fixture {
	t.Helper()
	return newFixtureOn(t, t.TempDir(), with)
}

func newFixtureOn(t *testing.T, dir string, with func(*Options)) *fixture {
	t.Helper()
	s, err := store.Open(dir)
	require.NoError(t, err)
	x, err := xds.New(t.Context(), xds.Options{Store: s, Wasm: "/lib/sluice.wasm"})
	require.NoError(t, err)
	o := Options{Store: s, XDS: x}
	with(&o)
	made := newServer(o)
	web := httptest.NewServer(made.mux(made.routes()))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	stream := grpc.NewServer(grpc.ForceServerCodecV2(xds.NewCodec()))
	o.XDS.Register(stream)
	go func() { _ = stream.Serve(listener) }()
	t.Cleanup(func() {
		web.Close()
		x.Stop()
		stream.GracefulStop()
		require.NoError(t, s.Close())
	})
	return &fixture{
		t: t, server: made, store: s, xds: o.XDS, url: web.URL, grpc: listener.Addr().String(), hangUp: stream.Stop,
	}
}

func (f *fixture) do(method, path, body string, header ...string) (int, string) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	require.NoError(f.t, err)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(f.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	return response.StatusCode, string(text)
}

func (f *fixture) json(method, path, body string, code int, into any) {
	f.t.Helper()
	got, text := f.do(method, path, body)
	require.Equal(f.t, code, got, text)
	decode(f.t, text, into)
}

// proxy connects, with an address for management requests if there is one, and answers every push with
// the verdict.
func (f *fixture) proxy(id string, accept func(number int) bool, manage ...string) {
	f.t.Helper()
	fields := map[string]any{}
	for _, address := range manage {
		fields["manage"] = address
	}
	metadata, err := structpb.NewStruct(map[string]any{"sluice": fields})
	require.NoError(f.t, err)
	node := &corev3.Node{Id: id, Metadata: metadata}
	xdstest.Answer(f.t, []string{f.grpc}, node, time.Second, func(version string) bool {
		var number int
		_, _ = fmt.Sscanf(version, "%d-", &number)
		return accept(number)
	})
	f.eventually(func(proxies []xds.ProxyStatus) bool {
		return slices.ContainsFunc(proxies, func(p xds.ProxyStatus) bool { return p.Node == id && p.Connected })
	})
}

// eventually waits until the proxies are so.
func (f *fixture) eventually(is func(proxies []xds.ProxyStatus) bool) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return is(f.xds.Ledger().Proxies()) }, 2*time.Minute, time.Millisecond)
}

// The API refuses a policy with the very problems that validate prints.
func TestBadPolicies(t *testing.T) {
	f := newFixture(t, "")
	for _, text := range []string{
		"", "version: [", "version: 1\nrules: []\nrevision: \"9\"\n", "version: 1\nrules: [{nam: a}]\nsurprise: 1\n",
	} {
		_, _, _, err := policyfile.Read("p.yaml", []byte(text))
		var want policyfile.Errors
		require.ErrorAs(t, err, &want)
		var got Error
		f.json("POST", "/v1/policies?file=p.yaml", text, 422, &got)
		require.Equal(t, Error{Error: "policy is not valid", Problems: Problems(want)}, got)
	}
	var e Error
	f.json("POST", "/v1/policies", good+strings.Repeat("# padding\n", policy.MaxBytes/5), 413, &e)
	require.Contains(t, e.Error, "1 MiB")
}

// The script proxies.txtar has what status says of proxies that refuse a revision.
func TestMetricsOfARefusal(t *testing.T) {
	f := newFixture(t, "")
	f.proxy("e1", func(n int) bool { return n == 1 })
	var a Applied
	f.json("POST", "/v1/policies?wasm=/opt/good.wasm", good, 201, &a)
	require.Equal(t, 1, a.Proxies)
	settled := func(acked, nacked uint64) {
		f.eventually(func(list []xds.ProxyStatus) bool {
			return list[0].Acked == acked && list[0].Nacked == nacked && !list[0].Waiting && !list[0].Unsettled
		})
	}
	settled(1, 0)
	f.json("POST", "/v1/policies?wasm=/opt/bad.wasm", good, 201, &a)
	settled(1, 2)
	f.as("", "GET /metrics", "", 200, "sluice_revision 2\n", "sluice_proxies_connected 1\n", "sluice_proxies_behind 1\n",
		"sluice_xds_pushes_total 3\n", "sluice_xds_acks_total 2\n", "sluice_xds_nacks_total 1\n")
	a = Applied{}
	f.json("POST", "/v1/policies", good, 201, &a)
	require.Equal(t, "/opt/good.wasm", a.Wasm, "a binary that was refused does not come again")
}

func TestWaitStreamsOutcomes(t *testing.T) {
	f := newFixture(t, "")
	f.proxy("yes", func(int) bool { return true })
	release := make(chan struct{})
	f.proxy("no", func(n int) bool { <-release; return n != 1 })
	var a Applied
	f.json("POST", "/v1/policies", good, 201, &a)

	response, err := http.Get(f.url + "/v1/revisions/1/wait?timeout=1m")
	require.NoError(t, err)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	next := func() (e WaitEvent) {
		require.True(t, lines.Scan())
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		return e
	}
	require.Equal(t, xds.ProxyOutcome{Node: "yes", Revision: 1, Outcome: xds.Acked}, *next().Outcome)
	close(release) // only now, so the first line came before the end
	v := next().Outcome
	require.Equal(t, xds.Nacked, v.Outcome)
	require.Equal(t, "no", v.Node)
	require.Equal(t, WaitEvent{Done: true}, next())
	require.False(t, lines.Scan())
}

func TestLoopbackTakesNoForeignNames(t *testing.T) {
	host := func(f *fixture, host string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/v1/status", http.NoBody)
		require.NoError(t, err)
		request.Host = host
		request.Header.Set("Authorization", "Bearer secret")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	open, guarded := newFixture(t, ""), newFixture(t, "secret")
	for _, name := range []string{
		"localhost", "localhost:1", "LOCALHOST", "localhost.:1", "127.0.0.1:18080", "[::1]:18080", "192.0.2.1",
	} {
		require.Equal(t, http.StatusOK, host(open, name), name)
	}
	// A page may have its name resolve to loopback, but cannot know the token.
	for _, name := range []string{"rebound.example", "rebound.example:18080", "127.0.0.1.example"} {
		require.Equal(t, http.StatusForbidden, host(open, name), name)
		require.Equal(t, http.StatusOK, host(guarded, name), name)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), into), text)
}
