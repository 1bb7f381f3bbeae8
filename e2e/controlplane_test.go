package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// controlPlane is a running `sluice serve`.
type controlPlane struct {
	*child.Child

	data, xds, http string   // directory and addresses
	store           string   // URL of its store, instead of data
	flags           []string // further flags of serve
}

// startControlPlane starts a control plane for this test alone, with further flags of serve.
func startControlPlane(t *testing.T, flags ...string) *controlPlane {
	c := newControlPlane(t, t.TempDir(), flags...)
	t.Cleanup(func() { c.kill(t) })
	return c
}

func newControlPlane(t *testing.T, dir string, flags ...string) *controlPlane {
	c := &controlPlane{data: filepath.Join(dir, "data"), xds: freeAddress(t), http: freeAddress(t), flags: flags}
	c.start(t)
	return c
}

// start starts serve, also again after a kill: with the same data and addresses.
func (c *controlPlane) start(t *testing.T) {
	tokenFile := filepath.Join(filepath.Dir(c.data), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(token+"\n"), 0o600))
	where := []string{"--data", c.data}
	if c.store != "" {
		where = []string{"--store", c.store}
	}
	args := []string{"serve", where[0], where[1], "--xds", c.xds, "--http", c.http, "--manage-token-file", tokenFile}
	var err error
	c.Child, err = child.Start(exec.Command(built.sluice, append(args, c.flags...)...))
	require.NoError(t, err)
	require.NoError(t, c.Until(t.Context(), "answer", func() bool { return answered(c.url() + "/healthz") }))
}

// kill ends serve as kill -9 does.
func (c *controlPlane) kill(t *testing.T) {
	end(t, c.Child)
}

func (c *controlPlane) url() string { return "http://" + c.http }

// apply applies a policy and requires every connected proxy to take it.
func (c *controlPlane) apply(t *testing.T, policy string, flags ...string) {
	sluiceOK(t, c.applying(t, policy, flags...)...)
}

// applying is the command that applies a policy.
func (c *controlPlane) applying(t *testing.T, policy string, flags ...string) []string {
	return append([]string{"apply", "-f", file(t, "policy.yaml", policy), "--server", c.url(), "--wait", "60s"}, flags...)
}

// proxyStatus is what `sluice status` prints for one proxy.
type proxyStatus struct {
	Node      string
	Connected bool
	Waiting   bool
	Runs      uint64
	Nacked    uint64
}

func (c *controlPlane) proxies(t *testing.T) map[string]proxyStatus {
	byNode := map[string]proxyStatus{}
	for _, p := range asked[struct{ Proxies []proxyStatus }](t, c, "status").Proxies {
		byNode[p.Node] = p
	}
	return byNode
}

// asked is what a command of the control plane says as JSON.
func asked[T any](t *testing.T, c *controlPlane, args ...string) T {
	return decoded[T](t, sluiceOK(t, append(args, "--server", c.url(), "--output", "json")...))
}

// awaitConnected waits until the proxy has a stream to the control plane.
func (c *controlPlane) awaitConnected(t *testing.T, node string) {
	eventually(t, time.Minute, node+" to connect", func() bool { return c.proxies(t)[node].Connected })
}

// proxy starts a proxy of this control plane.
func (c *controlPlane) proxy(t *testing.T, d driver, o proxyOptions) *proxy {
	o.xds = c.xds
	p := d.start(t, o)
	c.awaitConnected(t, o.node)
	return p
}

// push stores a revision over the HTTP API, without starting a process, and requires every connected proxy to take it.
func (c *controlPlane) push(t *testing.T, policy string) {
	res, err := http.Post(c.url()+"/v1/policies?file=policy.yaml", "application/yaml", strings.NewReader(policy))
	require.NoError(t, err)
	var stored struct{ Revision uint64 }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&stored))
	res.Body.Close()
	require.Less(t, res.StatusCode, 300)
	waited := body(t, fmt.Sprintf("%s/v1/revisions/%d/wait?timeout=30s", c.url(), stored.Revision))
	require.True(t, strings.HasSuffix(waited, "{\"done\":true}\n"), waited)
	require.NotContains(t, waited, `"outcome":"nacked"`)
}

// A proxy that refuses a revision keeps the old policy. status reports the NACK and
// never an ACK for it, and the next good revision applies.
func TestRefusedRevision(t *testing.T) {
	refusing := file(t, "refusing.wasm", buildtest.Refusing)
	missing := filepath.Join(t.TempDir(), "not-there.wasm")
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("100/"+far))
		c := s.control
		l := s.load(8)
		first := s.runs(t)
		require.Equal(t, 100, count(l.send(t, 200, user("alice")), allowed))
		var late *proxy
		for i, wasm := range []string{refusing, missing} {
			good, refused := first+uint64(2*i), first+uint64(2*i+1) // revisions
			out, _, exit := sluice(t, c.applying(t, s.inDomain(perUser("1000/"+far)), "--wasm", wasm)...)
			require.Equal(t, 1, exit)
			require.Regexp(t, `edge.*(?i)NACK`, out)
			require.Equal(t, 0, count(l.send(t, 200, user("alice")), allowed), "the old limit holds")
			eventually(t, 20*time.Second, "the last good revision to be back", func() bool {
				edge := c.proxies(t)["edge"]
				return edge.Nacked == refused && edge.Runs == good && !edge.Waiting
			})
			require.Equal(t, 0, count(l.send(t, 200, user("alice")), allowed), "the old limit holds")

			if late == nil { // a proxy that starts now gets the last good revision
				late = c.proxy(t, d, proxyOptions{node: "late"})
				eventually(t, 20*time.Second, "the late proxy to run the good revision", func() bool {
					return c.proxies(t)["late"].Runs == good
				})
				require.Equal(t, 100, count(late.load(8).send(t, 200, user("bob")), allowed))
			}

			s.apply(t, perUser(fmt.Sprint(130+30*i, "/", far)), "--wasm", built.filter)
			require.Equal(t, 30, count(l.send(t, 200, user("alice")), allowed))
			require.Equal(t, 30, count(late.load(8).send(t, 200, user("bob")), allowed))
		}
	})
}

// A proxy that starts while the control plane is down enforces the policy in its
// bootstrap, on both listeners, and changes to the served one when the control plane is
// back.
func TestStartWhileTheControlPlaneIsDown(t *testing.T) {
	t.Parallel()
	eachEnvoy(t, func(t *testing.T, d driver) {
		c := startControlPlane(t)
		c.apply(t, perUser("40/"+far)+managed)
		c.kill(t)
		management := &proxy{address: freeAddress(t)}
		_, port, _ := strings.Cut(management.address, ":")
		policy := perUser("30/"+far) + strings.Replace(managed, "{", "{port: "+port+", ", 1)
		p := d.start(t, proxyOptions{node: "edge", xds: c.xds, policy: policy, manage: management.address})
		require.Equal(t, 30, count(p.load(8).send(t, 100, user("alice")), allowed))
		require.EqualValues(t, 30, management.operate(t, "get", "rule=per-user&key=alice").Value)
		c.start(t)
		eventually(t, time.Minute, "the proxy to run the served policy", func() bool {
			return c.proxies(t)["edge"].Runs == 1
		})
		require.Equal(t, 10, count(p.load(8).send(t, 100, user("alice")), allowed))
		require.EqualValues(t, 40, management.operate(t, "get", "rule=per-user&key=alice").Value)
		require.Equal(t, http.StatusNotFound,
			p.status(t, "/.sluice/counters/get", ":method", http.MethodPost, "authorization", bearer),
			"clients' listener answers no operator, though the served policy names no port")
	})
}

// A proxy that was given no policy serves no request until the control plane gives it one, on no listener,
// also where the control plane is there and has none. Only --open-without-policy lets requests through.
func TestStartWithoutAPolicy(t *testing.T) {
	t.Parallel()
	eachEnvoy(t, func(t *testing.T, d driver) {
		c := startControlPlane(t)
		c.kill(t)
		management := &proxy{address: freeAddress(t)}
		closed := d.start(t, proxyOptions{node: "closed", xds: c.xds, manage: management.address})
		open := d.start(t, proxyOptions{node: "open", xds: c.xds, flags: []string{"--open-without-policy"}})
		serves := func(status int) {
			t.Helper()
			require.Equal(t, status, closed.status(t, "/", "x-user-id", "alice"))
			require.Equal(t, http.StatusOK, open.status(t, "/", "x-user-id", "bob"))
		}
		serves(http.StatusInternalServerError)
		require.Equal(t, http.StatusInternalServerError, management.status(t, "/"))
		c.start(t)
		c.awaitConnected(t, "closed")
		c.awaitConnected(t, "open") // each connects again by itself, and apply waits for those that have
		serves(http.StatusInternalServerError)
		c.apply(t, perUser("1/"+far)+managed)
		serves(http.StatusOK)
		require.Equal(t, http.StatusTooManyRequests, closed.status(t, "/", "x-user-id", "alice"))
		require.Equal(t, http.StatusTooManyRequests, open.status(t, "/", "x-user-id", "bob"))
		c.kill(t)
		require.Equal(t, http.StatusTooManyRequests, closed.status(t, "/", "x-user-id", "alice"), "it keeps what it has")
	})
}

// kill -9 during applies loses no acknowledged revision. The proxy keeps enforcing
// meanwhile and reconnects.
func TestControlPlaneKilled(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("100/"+far))
		c, policies := s.control, t.TempDir()
		first := int(s.runs(t))
		acknowledged := first
		for round := range 3 {
			var kill *time.Timer
			for {
				number := acknowledged + 1
				path := filepath.Join(policies, "policy.yaml")
				require.NoError(t, os.WriteFile(path, []byte(s.inDomain(perUser(fmt.Sprintf("%d/%s", 100+number, far)))), 0o600))
				_, _, exit := sluice(t, "apply", "-f", path, "--server", c.url(), "--wait", "0")
				if exit != 0 {
					break
				}
				acknowledged = number
				if kill == nil { // one is acknowledged, however busy the machine is, and it dies amid others
					kill = time.AfterFunc(time.Duration(200*round+100)*time.Millisecond, func() { _ = c.Kill() })
				}
			}
			require.NotNil(t, kill, "the control plane has taken a policy")
			<-c.Done()
			s.status(t, "/", "x-user-id", "nobody-in-particular")
			c.start(t)
			out := sluiceOK(t, "get", "--server", c.url(), "--output", "json", fmt.Sprint(acknowledged))
			require.Contains(t, out, fmt.Sprintf("%d/%s", 100+acknowledged, far), "the acknowledged revision is stored")
			// The revision that was in progress at the kill may be stored too.
			if _, _, exit := sluice(t, "get", "--server", c.url(), fmt.Sprint(acknowledged+1)); exit == 0 {
				acknowledged++
			}
		}
		require.Greater(t, acknowledged, first+2)
		// What it runs is known from before, and the site's next test applies to connected proxies.
		c.awaitConnected(t, "edge")
		eventually(t, time.Minute, "the proxy to run the newest revision", func() bool {
			return c.proxies(t)["edge"].Runs == uint64(acknowledged)
		})
		require.Equal(t, 100+acknowledged, count(s.load(8).send(t, 400+first, user("alice")), allowed))
	})
}
