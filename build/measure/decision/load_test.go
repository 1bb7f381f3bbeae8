//go:build linux

package decision

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"fortio.org/fortio/periodic"
	"fortio.org/log"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// connections is how many requests are in flight at an Envoy at most. It then always has
// work, and hardly a queue.
const connections = 8

// keyHeader tells clients apart.
const keyHeader = "x-user-id"

// patience is how long a run may take.
const patience = 3 * time.Minute

// clients are the connections to one listener of each Envoy. They are kept over all turns.
type clients struct {
	list             []*client
	admitted, denied int // in all runs
}

// client is one connection. fortio says when it sends, fasthttp how, or ask, if it has that.
type client struct {
	ask      func(key []byte) (denied bool, err error) // nil = an HTTP request to an Envoy
	conn     net.Conn
	in       *bufio.Reader
	out      *bufio.Writer
	request  fasthttp.Request
	response fasthttp.Response
	draw     func() []byte // says which key goes with the next request
	got      outcome
	err      error
}

// outcome is what became of the requests of a run.
type outcome struct {
	admitted, denied int
	took             time.Duration
	latencies        []float64 // µs
}

func (o outcome) p50() float64 { return quantile(o.latencies, 0.5) }
func (o outcome) p99() float64 { return quantile(o.latencies, 0.99) }

// stride leads from one key to the next. It is prime, so that all keys are visited, far
// apart.
const stride = 7919

// dial adds the connections to a listener.
func (l *clients) dial(t testing.TB, address, path string, n int) {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "user-%06d", i)
	}
	for i := range connections {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		next := i * n / connections // each connection begins with another key
		c := &client{conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn), draw: func() []byte {
			key := keys[next]
			next = (next + stride) % n
			return key
		}}
		c.request.SetRequestURI("http://api.example.com" + cmp.Or(path, "/v1/orders"))
		c.request.Header.SetUserAgent("bench")
		l.list = append(l.list, c)
	}
}

// Run sends one request and reads the answer: fortio calls it.
func (c *client) Run(context.Context, periodic.ThreadID) (ok bool, details string) {
	if c.err == nil {
		c.err = c.exchange()
	}
	return c.err == nil, ""
}

func (c *client) exchange() error {
	ask := c.ask
	if ask == nil {
		ask = c.askEnvoy
	}
	began := time.Now()
	denied, err := ask(c.draw())
	if err != nil {
		return err
	}
	if denied {
		c.got.denied++
	} else {
		c.got.admitted++
	}
	c.got.latencies = append(c.got.latencies, float64(time.Since(began).Nanoseconds())/1e3)
	return nil
}

func (c *client) askEnvoy(key []byte) (denied bool, err error) {
	c.request.Header.SetBytesV(keyHeader, key)
	if err := errors.Join(c.request.Write(c.out), c.out.Flush(), c.response.Read(c.in)); err != nil {
		return false, err
	}
	switch status := c.response.StatusCode(); status {
	case fasthttp.StatusOK:
		return false, nil
	case fasthttp.StatusTooManyRequests:
		return true, nil
	default:
		return false, fmt.Errorf("answered with %d: %s", status, c.response.Body())
	}
}

// full is a run of n requests as fast as they are answered.
func full(n int) periodic.RunnerOptions { return periodic.RunnerOptions{QPS: -1, Exactly: int64(n)} }

// paced is a run at a fixed rate, evenly over the connections; -1 = as fast as they are answered.
func paced(perSecond float64, d time.Duration) periodic.RunnerOptions {
	return periodic.RunnerOptions{QPS: perSecond, Uniform: perSecond > 0, Duration: d}
}

// run sends requests by all clients side by side.
func (l *clients) run(t testing.TB, o periodic.RunnerOptions) (all outcome) {
	log.SetLogLevelQuiet(log.Error) // fortio's
	o.NumThreads = len(l.list)
	o.Resolution = 1e-5
	o.Out = io.Discard
	o.Stop = periodic.NewAborter()
	runner := periodic.NewPeriodicRunner(&o)
	runner.Options().Runners = nil // fortio lets go of those in o
	for _, c := range l.list {
		c.got = outcome{latencies: c.got.latencies[:0]}
		if c.conn != nil {
			require.NoError(t, c.conn.SetDeadline(time.Now().Add(patience)))
		}
		runner.Options().Runners = append(runner.Options().Runners, c)
	}
	began := time.Now()
	runner.Run()
	all.took = time.Since(began)
	for _, c := range l.list {
		require.NoError(t, c.err)
		all.admitted, all.denied = all.admitted+c.got.admitted, all.denied+c.got.denied
		all.latencies = append(all.latencies, c.got.latencies...)
	}
	l.admitted, l.denied = l.admitted+all.admitted, l.denied+all.denied
	return all
}

// The upstream's long answers, as OpenAI's chat completions.
const (
	pathEvents = "/v1/events"
	pathJSON   = "/v1/json" // of 1 MB
	eventCount = 500
	eventPause = 100 * time.Microsecond // so that each comes alone, as tokens do
	usage      = `"usage":{"prompt_tokens":30,"completion_tokens":500}`
)

func writeEvents(w *bufio.Writer) {
	for i := range eventCount {
		said := ""
		if i == eventCount-1 {
			said = "," + usage
		}
		_, _ = fmt.Fprintf(w, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764000000,"model":"m",`+
			`"choices":[{"index":0,"delta":{"content":" word%d"},"finish_reason":null}]%s}`+"\n\n", i, said)
		_ = w.Flush()
		time.Sleep(eventPause)
	}
	_, _ = w.WriteString("data: [DONE]\n\n")
}

// startUpstream serves what every listener leads to: a small answer, as cheap as possible,
// since it shares its core with the load, or a long one.
func startUpstream(t testing.TB) (port int) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	body := []byte("hello\n")
	long := fmt.Appendf(nil, `{"choices":[{"index":0,"message":{"role":"assistant","content":%q}}],`+usage+`}`,
		strings.Repeat("the words of a line of eighty characters, of which an answer has many thousands\n", 1_000_000/81))
	server := &fasthttp.Server{NoDefaultServerHeader: true, NoDefaultContentType: true,
		Handler: func(c *fasthttp.RequestCtx) {
			switch string(c.Path()) {
			case pathEvents:
				c.SetContentType("text/event-stream")
				c.SetBodyStreamWriter(writeEvents)
			case pathJSON:
				c.SetContentType("application/json")
				c.Response.SetBodyRaw(long)
			default:
				c.Response.SetBodyRaw(body)
			}
		}}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Shutdown() })
	return listener.Addr().(*net.TCPAddr).Port
}
