package e2e

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var faultRuns = flag.Int("fault-runs", 0,
	"how often each fault happens to three Envoys, two quota services and their Redis; "+
		"0: the faults of a short run, once and to two Envoys")

const (
	faultTimeout = 100 * time.Millisecond // the default
	faultWait    = faultTimeout + 20*time.Millisecond
)

// faultSlack is what is not known of a machine that runs other tests at the same time.
// Long runs have it to themselves.
func faultSlack() time.Duration {
	if *faultRuns > 0 {
		return 0
	}
	return 500 * time.Millisecond
}

// withoutUpstream makes the proxy itself respond to admitted requests, so that a flood
// measures the filter.
var withoutUpstream = replacing("route: {cluster: upstream}",
	`direct_response: {status: 200, body: {inline_string: "hello\n"}}`)

// spread gives each worker as many connections.
var spread = replacing("\n    address: ", "\n    connection_balance_config: {exact_balance: {}}\n    address: ")

// waitingRig is an Envoy whose requests wait for a quota service behind a gate.
type waitingRig struct {
	*proxy
	control *controlPlane
	service *quotaService
	gate    *gate
	behind  *answering // what "/echo" gets to
	users   int
}

// waitingPolicy has a limit of a user who comes once. Requests to /free concern no rule.
const waitingPolicy = `
version: 1
quota: {timeout: %s}
rules:
  - name: waits
    scope: cluster
    on_unavailable: deny
    match: {paths: [/waits, "/echo*"]}
    key: [{header: x-user-id}]
    limits: [1/366d]
`

// A request that waits is answered within the timeout and 20 ms, whatever happens, and
// goes on as it came.
func TestWaiting(t *testing.T) {
	t.Parallel()
	w := newWaitingRig(t)
	t.Run("no answer", func(t *testing.T) {
		w.gate.hold()
		defer w.gate.open()
		got := w.burst(t, 64, nil)
		got.within(t, faultWait)
		require.Zero(t, got.count(allowed))
	})
	t.Run("answered late", func(t *testing.T) {
		w.recover(t)
		got := w.during(t, 64, func() {
			w.gate.hold()
			time.AfterFunc(faultTimeout/2, w.gate.open)
		}, nil)
		got.within(t, faultWait)
		require.Positive(t, got.count(allowed))
	})
	t.Run("many at once", func(t *testing.T) {
		n := 4096
		if *faultRuns == 0 {
			n = 1024 // it takes less
		}
		w.recover(t)
		free := w.send(t, n, steadyFree, nil)
		_, busy := waits(free.all, nil) // as long as answering so many takes
		for _, then := range []func(){nil, w.gate.open} {
			w.recover(t)
			got := w.during(t, n, w.gate.hold, then)
			_, took := waits(got.all, nil)
			t.Logf("%d requests, %d allowed: took %s, without a rule %s", len(got.all), got.count(allowed), took, busy)
			require.Equal(t, len(got.all), got.count(allowed)+got.count(denied))
			require.Less(t, took, faultWait+2*busy+faultSlack())
		}
	})
	t.Run("the clients go", func(t *testing.T) {
		w.recover(t)
		w.gate.hold()
		for i := range 256 {
			c, err := net.Dial("tcp", w.address)
			require.NoError(t, err)
			fmt.Fprintf(c, "GET /waits HTTP/1.1\r\nhost: api.example.com\r\nx-user-id: %s\r\n\r\n", w.user())
			time.AfterFunc(time.Duration(i%64)*2*time.Millisecond, func() { c.Close() })
		}
		time.Sleep(faultTimeout / 2)
		w.gate.open()
		w.recover(t)
	})
	t.Run("what waits goes on as it came", w.shapes)
	t.Run("a new policy", func(t *testing.T) {
		const timeout = time.Second
		w.control.push(t, fmt.Sprintf(waitingPolicy, timeout))
		w.recover(t)
		got := w.during(t, 64, w.gate.hold, func() { w.control.push(t, fmt.Sprintf(waitingPolicy, 2*timeout)) })
		got.within(t, timeout+20*time.Millisecond)
		w.gate.open()
		w.recover(t)
	})
	w.noTraps(t)
}

// shapes are requests with more than headers.
func (w *waitingRig) shapes(t *testing.T) {
	c := newClients(t, w.address, w.behind)
	for _, v := range []visit{
		{name: "a body", do: "echo", route: "redirect", want: allowed},
		{name: "gRPC", do: "grpc 0", http2: true, route: "http2", header: grpcType, want: allowed},
		{name: "a websocket", do: "websocket", route: "redirect", header: "upgrade: websocket",
			want: http.StatusSwitchingProtocols},
	} {
		t.Run(v.name, func(t *testing.T) {
			ask := func(user string) int {
				return c.visit(t.Context(), &v, "/echo", "", 300*time.Millisecond, "x-user-id: "+user)
			}
			w.recover(t)
			w.gate.hold()
			began, user := time.Now(), w.user()
			time.AfterFunc(faultTimeout/4, w.gate.open)
			require.Equal(t, v.want, ask(user))
			require.GreaterOrEqual(t, time.Since(began), faultTimeout/4, "it has waited")
			require.Equal(t, denied, ask(user))
			w.gate.hold()
			require.Equal(t, denied, ask(w.user()), "without an answer")
			w.gate.open()
		})
	}
}

func newWaitingRig(t *testing.T) *waitingRig {
	w := &waitingRig{control: startControlPlane(t), service: startQuota(t, quotaMemory), behind: startAnswering(t)}
	w.gate = newGate(t, w.service.address)
	w.proxy = w.control.proxy(t, newest(t), proxyOptions{
		node: "edge", quota: w.gate.address(), upstream: w.behind.URL, workers: 4,
		edit: func(bootstrap []byte) []byte { // what has no x-route is answered at once
			return withoutUpstream(answerRoutes(bootstrap, w.behind.Listener.Addr().String(),
				filepath.Join(t.TempDir(), "access")))
		},
	})
	w.control.push(t, fmt.Sprintf(waitingPolicy, faultTimeout))
	user := w.user()
	eventually(t, 10*time.Second, "each worker to have the policy", func() bool {
		for range 16 {
			connection := &steadyConnection{load: &steady{}}
			status, err := connection.exchange(w.address, "waits", user)
			connection.close()
			if err != nil || status != denied {
				return false
			}
		}
		return true
	})
	w.recover(t)
	return w
}

const quotaMemory = "memory"

// user is one who has not come yet.
func (w *waitingRig) user() string {
	w.users++
	return fmt.Sprint("user-", w.users)
}

// recover waits until no worker is without the service.
func (w *waitingRig) recover(t *testing.T) {
	w.gate.open()
	eventually(t, 10*time.Second, "the quota service to be asked again", func() bool {
		const some = 16 // on each worker
		if w.burst(t, some, nil).count(allowed) == some {
			return true
		}
		time.Sleep(100 * time.Millisecond)
		return false
	})
}

// answers are what became of a burst of requests.
type answers struct{ all, beside []exchange }

func (a answers) count(status int16) (n int) {
	for _, e := range a.all {
		if e.status == status {
			n++
		}
	}
	return n
}

// within requires that all were answered in time, and did not fail.
func (a answers) within(t *testing.T, limit time.Duration) {
	require.Equal(t, len(a.all), a.count(allowed)+a.count(denied))
	wait, took := waits(a.all, a.beside)
	t.Logf("%d requests, %d allowed: waited %s, took %s", len(a.all), a.count(allowed), wait, took)
	require.Less(t, wait, limit+faultSlack())
}

// during sends n requests of new users at once after before, and calls then while they
// wait.
func (w *waitingRig) during(t *testing.T, n int, before, then func()) answers {
	if then == nil {
		then = func() {}
	}
	late := make(chan struct{})
	got := w.burst(t, n, func() {
		before()
		time.AfterFunc(faultTimeout/4, func() { then(); close(late) })
	})
	<-late
	return got
}

// burst sends n requests of new users at once after before.
func (w *waitingRig) burst(t *testing.T, n int, before func()) answers {
	return w.send(t, n, "waits", before)
}

// send sends n requests at once, on connections of their own, after before. Beside them
// it sends requests that no rule concerns.
func (w *waitingRig) send(t *testing.T, n int, rule string, before func()) (got answers) {
	l := &steady{addresses: []string{w.address}}
	connect := func() *steadyConnection {
		c := &steadyConnection{load: l}
		_, err := c.exchange(w.address, steadyFree, "")
		require.NoError(t, err)
		return c
	}
	connections := make([]*steadyConnection, n)
	stop := make(chan struct{})
	var beside, all sync.WaitGroup
	for range 8 {
		c := connect()
		c.beside = true
		beside.Go(func() { c.run(stop, 0, besideEvery) })
	}
	for i := range connections {
		connections[i] = connect()
		defer connections[i].close()
	}
	if before != nil {
		before()
	}
	for _, c := range connections {
		user := w.user()
		all.Go(func() { c.sendTo(w.address, exchange{rule: rule, key: user}) })
	}
	all.Wait()
	close(stop)
	beside.Wait()
	got.all, got.beside = l.take("")
	return got
}
