package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/certtest"
)

// named is a policy of that name for the proxies of a selector, in one domain with the
// others: a rule of its own for users, and one that is shared over all proxies.
func named(name, proxies string, perUser, shared int) string {
	head := ""
	if name != "" {
		head = fmt.Sprintf("name: %s\nproxies: %s\n", name, proxies)
	}
	return head + fmt.Sprintf(`version: 1
domain: shop
rules:
  - {name: per-user, match: {paths: [/own]}, key: [{header: x-user-id}], limits: [%d/%s]}
  - {name: shared, match: {paths: [/shared]}, key: [{header: x-user-id}], scope: cluster, lease: "off", limits: [%d/%s]}
`, perUser, far, shared, far)
}

// Proxies of one control plane run the policy that is for them, move with a revision that
// says so, and have counters of their own but for rules of scope cluster in one domain.
func TestPolicies(t *testing.T) {
	t.Parallel()
	eachEnvoy(t, func(t *testing.T, d driver) {
		c := startControlPlane(t)
		proxies := map[string]*proxy{}
		for _, node := range []string{"edge-1", "core-1", "core-2"} {
			proxies[node] = c.proxy(t, d, proxyOptions{node: node, edit: inCluster(t, node)})
		}
		passes := func(node, path, user string) int {
			return count(proxies[node].load(1).send(t, 12, func(int) request { return request{path, "x-user-id", user} }),
				allowed)
		}
		edge := file(t, "edge.yaml", named("edge", `{node: "edge-*"}`, 3, 10))
		core := file(t, "core.yaml",
			named("core", `{node: "core-*", cluster: inner, metadata: {LABELS.tier: "g*"}, trust: metadata}`, 5, 10))
		out := sluiceOK(t, "apply", "-f", edge, "-f", core, "--server", c.url())
		require.Contains(t, out, "policy edge: revision 1 applied\npolicy core: revision 2 applied\n")
		c.apply(t, named("", "", 7, 10))
		require.Equal(t, []int{3, 5, 7},
			[]int{passes("edge-1", "/own", "a"), passes("core-1", "/own", "a"), passes("core-2", "/own", "a")})
		// What is counted over all proxies of the domain is one counter, whatever the policy.
		require.Equal(t, 10, passes("edge-1", "/shared", "s"))
		require.Zero(t, passes("core-1", "/shared", "s")+passes("core-2", "/shared", "s"))

		// A revision for other proxies moves them; what was counted in the domain stays.
		out = sluiceOK(t, "apply", "-f", file(t, "core.yaml", named("core", `{node: "core-*"}`, 9, 10)), "--server", c.url())
		require.Contains(t, out, "core-2 ")
		require.NotContains(t, out, "edge-1 ")
		require.Equal(t, []int{0, 4, 2},
			[]int{passes("edge-1", "/own", "a"), passes("core-1", "/own", "a"), passes("core-2", "/own", "a")})

		// What could be for one proxy twice changes nothing, and a serve that is killed
		// comes back with all of it.
		sluiceRefuses(t, `would both be for a proxy with node "core-1"`,
			c.applying(t, named("both", `{node: "*-1"}`, 1, 1))...)
		c.kill(t)
		c.start(t)
		for node, revision := range map[string]uint64{"edge-1": 1, "core-1": 4, "core-2": 4} {
			eventually(t, time.Minute, node+" to be back",
				func() bool { p := c.proxies(t)[node]; return p.Connected && p.Runs == revision && !p.Waiting })
		}
		require.Equal(t, 3, passes("edge-1", "/own", "b"))
	})
}

// A policy may be for those whose certificate has a name, whatever they call themselves.
func TestPolicyOfACertificate(t *testing.T) {
	t.Parallel()
	d, dir := newest(t), t.TempDir()
	ca := certtest.Issue(nil, nil)
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, c *tls.Certificate) {
		cert, key := certtest.PEM(c)
		require.NoError(t, errors.Join(os.WriteFile(path(name+".pem"), []byte(cert), 0o600),
			os.WriteFile(path(name+".key"), []byte(key), 0o600)))
	}
	write("ca", ca)
	write("server", certtest.Issue(ca, []string{"localhost"}))
	for _, name := range []string{"gate.edge.corp", "gate.core.corp"} {
		write(name, certtest.Issue(ca, []string{name}))
	}
	// Each certificate grants both ids.
	require.NoError(t, os.WriteFile(path("names"), []byte("*.edge.corp gate-*\n*.core.corp gate-*\n"), 0o600))
	c := &controlPlane{data: path("data"), xds: freeAddress(t), http: freeAddress(t)}
	args := []string{"serve", "--data", c.data, "--xds", c.xds, "--http", c.http, "--tls-cert", path("server.pem"),
		"--tls-key", path("server.key"),
		"--xds-client-ca", path("ca.pem"), "--node-names", path("names")}
	serve := exec.Command(built.sluice, args...)
	require.NoError(t, serve.Start())
	t.Cleanup(func() { _, _ = serve.Process.Kill(), serve.Wait() })
	_, port, err := net.SplitHostPort(c.http)
	require.NoError(t, err)
	server := []string{"--server", "https://localhost:" + port, "--ca", path("ca.pem")}
	eventually(t, 30*time.Second, "serve to answer",
		func() bool { _, _, exit := sluice(t, append([]string{"status"}, server...)...); return exit == 0 })
	edge := file(t, "edge.yaml", named("edge", `{san: "*.edge.corp"}`, 2, 1))
	sluiceOK(t, append([]string{"apply", "-f", edge, "-f", file(t, "rest.yaml", named("", "", 5, 1))}, server...)...)
	for name, want := range map[string]int{"gate.edge.corp": 2, "gate.core.corp": 5} {
		_, port, err := net.SplitHostPort(c.xds)
		require.NoError(t, err)
		p := d.start(t, proxyOptions{node: "gate-1", xds: "localhost:" + port, flags: []string{
			"--xds-ca", path("ca.pem"), "--xds-cert", path(name + ".pem"), "--xds-key", path(name + ".key"),
		}})
		got := p.load(1).send(t, 6, func(int) request { return request{"/own", "x-user-id", "a"} })
		require.Equal(t, want, count(got, allowed), name)
	}
}

// inCluster puts core-1 into a cluster, and gives it labels.
func inCluster(t *testing.T, node string) func([]byte) []byte {
	if node != "core-1" {
		return nil
	}
	return func(bootstrap []byte) []byte {
		document := unmarshaled(t, string(bootstrap))
		node := document["node"].(object)
		metadata, _ := node["metadata"].(object)
		metadata["LABELS"] = object{"tier": "gold"}
		node["cluster"] = "inner"
		return marshaled(t, document)
	}
}

// canaryStatus is what status says of a canary.
type canaryStatus struct {
	Revision uint64
	State    string
	Says     string
	Seen     []struct{ Canary, Others struct{ Requests uint64 } }
}

func (c *controlPlane) canaryStatus(t *testing.T) canaryStatus {
	type policy struct{ Canary canaryStatus }
	return decoded[struct{ Policies []policy }](t, body(t, c.url()+"/v1/status")).Policies[0].Canary
}

// canaryRig is a control plane with an Envoy that is in a tenth of its proxies, one that is not,
// and a simulated one.
type canaryRig struct {
	*controlPlane
	proxies map[string]*proxy
	users   int
}

const chosen, other = "edge-11", "edge-1"

// good is the revision that all but the canary keep.
const good = uint64(1)

// visit sends requests of a new user, and returns how many pass.
func (r *canaryRig) visit(t *testing.T, node string, n int) (passed int) {
	r.users++
	return count(r.proxies[node].load(1).send(t, n, user(fmt.Sprint("u", r.users))), allowed)
}

func (r *canaryRig) onlyChosen(t *testing.T) {
	for node, p := range r.controlPlane.proxies(t) {
		require.True(t, node == chosen || p.Runs == good && p.Nacked == 0, "%s: %+v", node, p)
	}
}

// canary is the command that tries a policy.
func (r *canaryRig) canary(t *testing.T, policy string, flags ...string) []string {
	return r.applying(t, policy, append(flags, "--canary", "10%")...)
}

func (r *canaryRig) stalls(t *testing.T, why string, meanwhile func()) {
	eventually(t, 20*time.Second, "the canary to stall", func() bool {
		meanwhile()
		r.onlyChosen(t)
		return r.canaryStatus(t).State == "stalled"
	})
	require.Contains(t, r.canaryStatus(t).Says, why)
}

// aborts requires that the revision before is back once the command ends.
func (r *canaryRig) aborts(t *testing.T, what string) {
	began := time.Now()
	sluiceOK(t, "abort", "--server", r.url())
	require.Equal(t, good, r.controlPlane.proxies(t)[chosen].Runs)
	require.Equal(t, 20, r.visit(t, chosen, 20))
	t.Logf("%s: back after %s", what, time.Since(began))
	r.onlyChosen(t)
}

// A canary that denies too much, one that its proxy refuses and one that crashes stall by
// themselves, also where serve is killed meanwhile: no other proxy ever runs them. Abort brings
// the revision before back, also one with another filter.
func TestCanary(t *testing.T) {
	t.Parallel()
	r, wasm := &canaryRig{controlPlane: startControlPlane(t), proxies: map[string]*proxy{}},
		buildtest.Filter(t, "sluice_faults")
	for node, of := range map[string]driver{chosen: newest(t), other: newest(t), "edge-2": {name: "run"}} {
		o := proxyOptions{node: node, wasm: wasm, workers: 1}
		if of.envoy != "" {
			o.manage = freeAddress(t)
		}
		r.proxies[node] = r.proxy(t, of, o)
	}
	policy := func(limit int) string { return perUser(fmt.Sprintf("%d/%s", limit, far)) + managed }
	r.apply(t, policy(100_000))

	sluiceOK(t, r.canary(t, policy(10), "--promote-after", "3s")...)
	r.onlyChosen(t)
	require.Equal(t, 10, r.visit(t, chosen, 150))
	sluiceRefuses(t, "is a canary: end that first, by sluice promote or sluice abort", r.applying(t, policy(20))...)
	r.kill(t)
	r.start(t)
	r.awaitConnected(t, chosen)
	r.awaitConnected(t, other)
	r.stalls(t, "per-user denies ", func() { r.visit(t, chosen, 50); require.Equal(t, 50, r.visit(t, other, 50)) })
	r.aborts(t, "a limit")

	sluiceOK(t, r.canary(t, policy(10), "--abort-on-denied")...)
	require.Regexp(t, `(?m), a canary of 10% on 1 of 3 proxies$`, sluiceOK(t, "status", "--server", r.url()))
	eventually(t, 20*time.Second, "the canary to abort itself", func() bool {
		r.visit(t, chosen, 50)
		require.Equal(t, 50, r.visit(t, other, 50))
		r.onlyChosen(t)
		return r.canaryStatus(t).Revision == 0 && r.controlPlane.proxies(t)[chosen].Runs == good
	})
	last := sluiceOK(t, "audit", "--limit", "1", "--server", r.url())
	require.Regexp(t, `sluice serve .* abort .* per-user denies `, last)

	sluiceRefuses(t, "was refused by 1 proxy", r.canary(t, policy(100_000)+"# again\n", "--wasm", "/not/there.wasm")...)
	r.stalls(t, "refused by "+chosen, func() {})
	r.aborts(t, "a refusal")

	sluiceOK(t, r.canary(t, policy(10))...)
	eventually(t, 20*time.Second, "the canary to be watched", func() bool {
		r.visit(t, chosen, 1)
		seen := r.canaryStatus(t).Seen
		return len(seen) > 0 && seen[0].Canary.Requests > 0
	})
	panics := func() int { return r.proxies[chosen].status(t, "/", "x-user-id", "u", "x-fault", "panic") }
	require.Equal(t, 503, panics())
	r.stalls(t, "the filter of "+chosen+" has crashed", func() { r.visit(t, chosen, 1) })
	r.aborts(t, "a crash")

	sluiceOK(t, r.canary(t, policy(10), "--wasm", built.filter)...)
	r.onlyChosen(t)
	require.Equal(t, 10, r.visit(t, chosen, 20))
	require.Equal(t, 200, panics(), "this filter has no faults")
	r.aborts(t, "another filter")
	require.Equal(t, 503, panics(), "it is the one before")
	eventually(t, 5*time.Second, "it to be made anew", func() bool { return r.visit(t, chosen, 1) == 1 })

	r.apply(t, policy(7))
	require.Equal(t, []int{7, 7}, []int{r.visit(t, chosen, 9), r.visit(t, other, 9)})
}
