package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	slots       = 10
	linger      = time.Second
	inFlightFor = 12 * time.Second
)

// flight is a load on the slots of a rule.
type flight struct {
	rig      *answerRig
	clients  *clients
	visits   []visit
	begin    time.Time
	statuses sync.Map // by visit: *[600]atomic.Int64
}

// fly has n clients ask until ctx ends. One that is denied asks again soon.
func (r *answerRig) fly(ctx context.Context, t *testing.T, n int, visits []visit) *flight {
	r.upstream.forget(t)
	f := &flight{rig: r, clients: newClients(t, r.address, r.upstream), visits: visits, begin: time.Now()}
	atOnce(n, func(i int) {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		for j := 0; ctx.Err() == nil; j++ {
			v := &visits[(i+j)%len(visits)]
			took := 50 + random.IntN(451)
			if v.resets { // in time, also on a busy machine; the upstream is done before the slot is free
				took = 500 + random.IntN(51)
			}
			for again := true; again && ctx.Err() == nil; {
				status := f.clients.visit(context.WithoutCancel(ctx), v, "/flight", fmt.Sprint(i, "-", j),
					time.Duration(took)*time.Millisecond)
				f.count(v, status)
				again = status == http.StatusTooManyRequests
				if again {
					time.Sleep(time.Duration(100+random.IntN(200)) * time.Millisecond)
				}
			}
		}
	})
	return f
}

func (f *flight) count(v *visit, status int) {
	counts, _ := f.statuses.LoadOrStore(v, new([600]atomic.Int64))
	counts.(*[600]atomic.Int64)[status].Add(1)
}

// requireStatuses: each visit has ended as it had to, some of each kind, or was denied.
func (f *flight) requireStatuses(t *testing.T) {
	for i := range f.visits {
		v := &f.visits[i]
		counts, _ := f.statuses.LoadOrStore(v, new([600]atomic.Int64))
		for status := range 600 {
			n := counts.(*[600]atomic.Int64)[status].Load()
			switch status {
			case v.want:
				require.Positive(t, n, v.name)
			case http.StatusTooManyRequests, v.late():
			default:
				require.Zero(t, n, "%s: %d", v.name, status)
			}
		}
	}
}

// share is how much of the slots' time was used between from and to, as the proxy's log has
// it: from when a request came until it was over, or for linger after it was reset.
func (f *flight) share(t *testing.T, from, to time.Time) float64 {
	time.Sleep(time.Second) // the log is written by then
	var used time.Duration
	for line := range strings.Lines(read(t, f.rig.accessLog)) {
		if !strings.Contains(line, " /flight") {
			continue
		}
		var start float64
		var ms int
		var flags, details, path string
		_, err := fmt.Sscan(line, &start, &ms, &flags, &details, &path)
		require.NoError(t, err, line)
		if strings.HasPrefix(details, "rate_limited") || details == "internal_redirect" {
			continue // a redirect's second pass has the time of both
		}
		begin := time.UnixMicro(int64(start * 1e6))
		end := begin.Add(time.Duration(ms) * time.Millisecond)
		if details == "max_duration_timeout" || slices.Contains([]string{"DC", "DR", "UT", "SI", "UPE"}, flags) {
			end = end.Add(linger)
		}
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		used += max(0, end.Sub(begin))
	}
	return used.Seconds() / slots / to.Sub(from).Seconds()
}

// requireAllFree: all slots are there, and not one more.
func (r *answerRig) requireAllFree(t *testing.T) {
	used(t, r.proxy, "in-flight")
	r.requireGauges(t, "in-flight")
	r.upstream.forget(t)
	c := newClients(t, r.address, r.upstream)
	statuses := make([]int, 2*slots)
	atOnce(len(statuses), func(i int) {
		statuses[i] = c.visit(t.Context(), &visit{do: "200"}, "/flight", "", 500*time.Millisecond)
	})
	slices.Sort(statuses)
	require.Equal(t, append(slices.Repeat([]int{200}, slots), slices.Repeat([]int{429}, slots)...), statuses)
	require.Equal(t, slots, r.upstream.most)
	used(t, r.proxy, "in-flight")
}

// TestAnswers: an answer is charged by what came of it, and requests in flight keep to their
// slots, on an Envoy with all its ways to end a request.
func TestAnswers(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		r := newAnswerRig(t, d, proxyOptions{policy: edgesPolicy})
		t.Run("charged", r.charged)
		t.Run("in flight", r.inFlight)
		r.noTraps(t)
	})
}

// inFlight: under every way in which a request may end never more than so many are at the
// upstream at once, and no slot is lost or lies idle for long.
func (r *answerRig) inFlight(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), inFlightFor)
	defer cancel()
	f := r.fly(ctx, t, 200, visits)
	share := f.share(t, f.begin.Add(time.Second), f.begin.Add(inFlightFor))
	t.Logf("%s: %d requests reached the upstream in %s, at most %d at once, %.1f %% of the slots used",
		t.Name(), r.upstream.reached, inFlightFor, r.upstream.most, 100*share)
	require.LessOrEqual(t, r.upstream.most, slots)
	require.GreaterOrEqual(t, share, 0.97)
	f.requireStatuses(t)
	for _, gauge := range []string{"rate_limit_held_units", "rate_limit_held_streams"} {
		_, shown := r.metric(t, gauge, "in-flight")
		require.True(t, shown, gauge)
	}
	r.requireAllFree(t)
}

// edgesPolicy has rules that are charged for different answers.
const edgesPolicy = `
version: 1
` + managed + `rules:
  - {name: all, match: {paths: ["/edges", "/edges/*"]}, key: [{header: x-user-id}], limits: [100/` + far +
	`], settle: {}}
  - {name: errors, match: {paths: ["/edges", "/edges/*"]}, key: [{header: x-user-id}], limits: [100/` + far +
	`], settle: {when: {status: [403, 418, "5xx"]}}}
  - name: missing
    match: {paths: [/edges], headers: {content-type: application/grpc}}
    key: [{header: x-user-id}]
    limits: [100/` + far + `]
    settle: {when: {grpc_status: [5]}}
  - {name: cost, match: {paths: [/edges]}, key: [{header: x-user-id}], limits: [100/` + far +
	`], settle: {to: {trailer: x-cost}, unknown: 0}}
  - name: bytes
    match: {paths: [/edges]}
    key: [{header: x-user-id}]
    limits: [100/` + far + `]
    settle: {to: response_bytes, when: {status: ["2xx"], no_answer: false}}
  - {name: each, match: {paths: [/edges]}, key: [{header: x-user-id}], algorithm: concurrency, limits: [3],
     hold: 10s, linger: 15s}
  - {name: in-flight, match: {paths: ["/flight", "/flight/*"]}, algorithm: concurrency, limits: [10], hold: 10s}
`

// edgesRules are in the order of visit.charged.
var edgesRules = [5]string{"all", "errors", "missing", "cost", "bytes"}

// charged: each way in which an answer may end, or not, is charged as it has to, once.
func (r *answerRig) charged(t *testing.T) {
	c := newClients(t, r.address, r.upstream)
	statuses := make([]int, len(visits))
	atOnce(len(visits), func(i int) {
		statuses[i] = c.visit(t.Context(), &visits[i], "/edges", fmt.Sprint("edge-", i), 600*time.Millisecond,
			fmt.Sprint("x-user-id: u", i))
	})
	time.Sleep(time.Second)
	for i := range visits {
		held := r.operate(t, "get", fmt.Sprint("rule=each&key=u", i)).Held
		require.Equal(t, visits[i].lingers(), *held == 1, "%s: holds %d", visits[i].name, *held)
	}
	for i := range visits {
		v := &visits[i]
		require.Equal(t, v.want, statuses[i], v.name)
		key := fmt.Sprint("&key=u", i)
		for j, rule := range edgesRules {
			require.Equal(t, v.charged[j], used(t, r.proxy, rule+key), "%s, rule %s", v.name, rule)
		}
	}
	used(t, r.proxy, "each&key=u0")
	for _, rule := range append(edgesRules[:], "each") {
		r.requireGauges(t, rule)
	}
}

// visit is how a client asks the answering upstream, how it behaves, and what comes of it.
type visit struct {
	name    string
	do      string // what the upstream does
	route   string
	header  string // one more, as "name: value"
	http2   bool
	leaves  leaving
	resets  bool     // the proxy does, after 0.2 s
	breaks  bool     // the upstream breaks the protocol
	want    int      // the status; 0 = the answer has no end
	charged [5]int64 // by edgesRules
}

// leaving is when a client resets its request.
type leaving int

const (
	stays  leaving = iota
	before         // once the upstream has the request
	amid           // once a part of the answer is there
)

const grpcType = "content-type: application/grpc"

// visits are all ways of a request under which a slot must neither leak nor be free too early.
var visits = []visit{
	{name: "an answer", do: "200 hello", want: 200, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "an answer over HTTP/2", http2: true, do: "200 hello", route: "http2", want: 200,
		charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "no body", do: "204", want: 204, charged: [5]int64{1}},
	{name: "an error", do: "500 hello", want: 500, charged: [5]int64{1, 1}},
	{name: "chunks", do: "chunks", want: 200, charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "chunks over HTTP/2", http2: true, do: "chunks", want: 200, charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "trailers", do: "trailers 7", want: 200, charged: [5]int64{1, 0, 0, 7, 15}},
	{name: "trailers over HTTP/2", http2: true, do: "trailers 7", route: "http2", want: 200,
		charged: [5]int64{1, 0, 0, 7, 15}},
	{name: "a gRPC stream", http2: true, do: "grpc 0", route: "http2", header: grpcType, want: 200,
		charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "a gRPC error", http2: true, do: "grpc 5", route: "http2", header: grpcType, want: 200,
		charged: [5]int64{1, 0, 1, 0, 15}},
	{name: "a websocket that the upstream ends", do: "websocket", header: "upgrade: websocket", want: 101,
		charged: [5]int64{1}},
	{name: "a websocket that the client leaves", do: "websocket", header: "upgrade: websocket", leaves: amid,
		charged: [5]int64{1}},
	{name: "the client leaves before the answer", do: "200", leaves: before, charged: [5]int64{1, 1, 0, 1}},
	{name: "the client leaves before the answer over HTTP/2", http2: true, do: "200", route: "http2", leaves: before,
		charged: [5]int64{1, 1, 0, 1}},
	{name: "the client leaves amid the answer", do: "chunks", leaves: amid, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "the client leaves amid a gRPC stream", http2: true, do: "grpc 0", route: "http2", header: grpcType,
		leaves: amid, charged: [5]int64{1, 0, 1, 0, 5}},
	{name: "the upstream resets before the answer", do: "reset", want: 503, charged: [5]int64{1, 1, 0, 1}},
	{name: "the upstream resets amid the answer", do: "chunk-reset", breaks: true, charged: [5]int64{1, 0, 0, 0, 15}},
	{name: "the upstream resets amid a gRPC stream", http2: true, do: "chunk-reset", route: "http2", header: grpcType,
		charged: [5]int64{1, 0, 1, 0, 15}},
	{name: "the upstream resets over HTTP/2", do: "reset", route: "http2", want: 503, charged: [5]int64{1, 1, 0, 1}},
	{name: "the upstream garbles the answer", do: "garbage", breaks: true, want: 502, charged: [5]int64{1, 1, 0, 1}},
	{name: "a timeout", do: "200", route: "timeout", resets: true, want: 504, charged: [5]int64{1, 1, 0, 1}},
	{name: "a timeout amid the answer", do: "chunks", route: "timeout", resets: true, charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "an idle stream", do: "200", route: "idle", resets: true, want: 504, charged: [5]int64{1, 1, 0, 1}},
	{name: "an upstream's timeout", do: "504 hello", want: 504, charged: [5]int64{1, 1}},
	{name: "a longest duration amid the answer", do: "chunks", route: "longest", resets: true,
		charged: [5]int64{1, 0, 0, 0, 5}},
	{name: "a retry", do: "fail-once", route: "retry", want: 200, charged: [5]int64{1}},
	{name: "retries used up", do: "fails", route: "retry", want: 503, charged: [5]int64{1, 1}},
	{name: "an internal redirect", do: "redirect", route: "redirect", want: 200, charged: [5]int64{1}},
	{name: "a reply of the route", route: "direct", want: 404, charged: [5]int64{1}},
	{name: "a reply of a later filter", header: "x-envoy-fault-abort-request: 418", want: 418, charged: [5]int64{1, 1}},
	{name: "a reply of an earlier filter", header: "x-before: yes", want: 403},
	{name: "no healthy upstream", route: "nowhere", want: 503, charged: [5]int64{1, 1}},
}

// lingers reports whether the proxy resets the upstream, which may go on.
func (v *visit) lingers() bool { return v.leaves != stays || v.resets || v.breaks }

// late is how a visit ends that is to be cut off amid the answer, where a busy machine comes
// to that too late: the client after the end, the proxy before the begin.
func (v *visit) late() int {
	switch {
	case v.want != 0:
		return v.want
	case v.resets:
		return http.StatusGatewayTimeout
	case v.leaves != stays:
		return http.StatusOK
	}
	return 0
}

// clients ask one proxy, over connections that each worker has as many of.
type clients struct {
	address  string
	upstream *answering
	http1    *http.Transport
	http2    []*http.Transport
}

func newClients(t *testing.T, address string, upstream *answering) *clients {
	c := &clients{address: address, upstream: upstream}
	c.http1 = &http.Transport{Protocols: protocols(1), MaxIdleConnsPerHost: 300, DisableCompression: true}
	t.Cleanup(c.http1.CloseIdleConnections)
	for range 2 * workers {
		h := &http.Transport{Protocols: protocols(2), DisableCompression: true}
		t.Cleanup(h.CloseIdleConnections)
		c.http2 = append(c.http2, h)
	}
	return c
}

// visit asks once and returns the status, 0 where the answer did not come to its end.
func (c *clients) visit(ctx context.Context, v *visit, path, id string, took time.Duration,
	more ...string) (status int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if v.leaves == before {
		defer c.upstream.onArrival(id, cancel)()
	}
	text := "a body"
	if v.do == "echo" {
		text = strings.Repeat("0123456789", 20_000)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.address+path, strings.NewReader(text))
	if err != nil {
		return 0
	}
	for _, line := range append(more, "x-id: "+id, "x-do: "+v.do, "x-ms: "+strconv.Itoa(int(took.Milliseconds())),
		"x-route: "+v.route, v.header) {
		if name, value, ok := strings.Cut(line, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	if v.do == "redirect" || v.do == "websocket" { // Envoy redirects no body
		r.Method = http.MethodGet
		r.Body = nil
		r.ContentLength = 0
	}
	if v.do == "websocket" {
		return c.upgrade(ctx, r, v, cancel)
	}
	res, err := c.transport(v.http2).RoundTrip(r)
	if err == nil {
		defer res.Body.Close()
		if res.Header.Get("grpc-status") != "" { // a denial
			return http.StatusTooManyRequests
		}
		if v.leaves == amid && res.StatusCode == http.StatusOK {
			_, _ = io.ReadFull(res.Body, make([]byte, 5))
			cancel()
		}
		var got []byte
		got, err = io.ReadAll(res.Body)
		if v.do == "echo" && res.StatusCode == http.StatusOK && string(got) != text {
			return 0
		}
	}
	if err != nil {
		return 0
	}
	return res.StatusCode
}

func (c *clients) transport(http2 bool) *http.Transport {
	if http2 {
		return c.http2[rand.N(len(c.http2))]
	}
	return c.http1
}

// upgrade is a websocket that goes on until the upstream ends it.
func (c *clients) upgrade(ctx context.Context, r *http.Request, v *visit, leave func()) (status int) {
	conn, err := net.Dial("tcp", c.address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r.Header.Set("connection", "upgrade")
	if err := r.Write(conn); err != nil {
		return 0
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, r)
	if err != nil {
		return 0
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		_, _ = io.WriteString(conn, "hello")
		_, _ = io.ReadFull(reader, make([]byte, 5))
		if v.leaves == amid {
			leave()
		}
		_, _ = io.Copy(io.Discard, reader)
	}
	if ctx.Err() != nil {
		return 0
	}
	return res.StatusCode
}
