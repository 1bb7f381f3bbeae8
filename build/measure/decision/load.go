package decision

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"fortio.org/fortio/periodic"
	"fortio.org/log"
	"github.com/valyala/fasthttp"

	"github.com/sluice-ratelimit/sluice/build/measure/sample"
)

// connections is how many requests are in flight at most. Envoy then always has
// work, and hardly a queue.
const connections = 8

// keyHeader tells clients apart.
const keyHeader = "x-user-id"

// clients are the connections to one listener. They are kept over all its turns.
type clients []*client

// client is one connection. fortio says when it sends, fasthttp how.
type client struct {
	conn     net.Conn
	in       *bufio.Reader
	out      *bufio.Writer
	request  fasthttp.Request
	response fasthttp.Response
	keys     [][]byte // one of them goes with each request
	next     int
	draw     func() []byte // says which key goes with the next request; nil = keys in turn

	timed bool // note latencies
	got   outcome
	err   error
}

// outcome is what became of the requests of a turn.
type outcome struct {
	admitted, denied int
	took             time.Duration
	latencies        []float64 // µs
}

// dial connects clients that ask for a path, or the usual one, and send n keys of one length in
// turn.
func dial(address, path string, n int) (clients, error) {
	log.SetLogLevelQuiet(log.Error) // fortio's
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "user-%06d", i)
	}
	var list clients
	for i := range connections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			list.close()
			return nil, fmt.Errorf("dial listener: %w", err)
		}
		// Each connection begins with another key.
		c := &client{conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn), keys: keys, next: i * n / connections}
		c.request.SetRequestURI("http://api.example.com" + cmp.Or(path, "/v1/orders"))
		c.request.Header.SetUserAgent("bench")
		list = append(list, c)
	}
	return list, nil
}

func (l clients) close() {
	for _, c := range l {
		_ = c.conn.Close()
	}
}

// Run sends one request and reads the answer: fortio calls it.
func (c *client) Run(context.Context, periodic.ThreadID) (ok bool, details string) {
	if c.err == nil {
		c.err = c.exchange()
	}
	return c.err == nil, ""
}

// stride leads from one key to the next. It is prime, so that all keys are
// visited, far apart.
const stride = 7919

func (c *client) exchange() error {
	began := time.Now()
	if c.draw != nil {
		c.request.Header.SetBytesV(keyHeader, c.draw())
	} else {
		c.request.Header.SetBytesV(keyHeader, c.keys[c.next])
		c.next = (c.next + stride) % len(c.keys)
	}
	if err := c.request.Write(c.out); err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	if err := c.out.Flush(); err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	if err := c.response.Read(c.in); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	switch status := c.response.StatusCode(); status {
	case fasthttp.StatusOK:
		c.got.admitted++
	case fasthttp.StatusTooManyRequests:
		c.got.denied++
	default:
		return fmt.Errorf("answered with %d: %s", status, c.response.Body())
	}
	if c.timed {
		c.got.latencies = append(c.got.latencies, float64(time.Since(began).Nanoseconds())/1e3)
	}
	return nil
}

// full sends n requests as fast as they are answered.
func (l clients) full(n int) (outcome, error) {
	return l.run(periodic.RunnerOptions{QPS: -1, Exactly: int64(n)}, false)
}

// paced sends at a fixed rate, evenly over the connections, and times each
// request.
func (l clients) paced(perSecond float64, d time.Duration) (outcome, error) {
	return l.run(periodic.RunnerOptions{QPS: perSecond, Uniform: true, Exactly: int64(perSecond * d.Seconds())}, true)
}

func (l clients) run(o periodic.RunnerOptions, timed bool) (all outcome, err error) {
	var runners []periodic.Runnable
	for _, c := range l {
		c.timed, c.got = timed, outcome{latencies: c.got.latencies[:0]}
		runners = append(runners, c)
		if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return all, err
		}
	}
	all.took = runAll(runners, o)
	for _, c := range l {
		if c.err != nil {
			return all, c.err
		}
		all.admitted += c.got.admitted
		all.denied += c.got.denied
		all.latencies = append(all.latencies, c.got.latencies...)
	}
	return all, nil
}

// patience is how long a run may take.
const patience = 3 * time.Minute

// runAll runs the runners side by side, and returns how long that took.
func runAll(runners []periodic.Runnable, o periodic.RunnerOptions) time.Duration {
	o.NumThreads, o.Resolution, o.Out, o.Stop = len(runners), 1e-5, io.Discard, periodic.NewAborter()
	began := time.Now()
	runner := periodic.NewPeriodicRunner(&o)
	runner.Options().Runners = runners // fortio lets go of those in o
	runner.Run()
	return time.Since(began)
}

func (o outcome) latency() latency {
	return latency{sample.Quantile(o.latencies, 0.5), sample.Quantile(o.latencies, 0.99)}
}

// The upstream's long answers, as OpenAI's chat completions.
const (
	pathEvents = "/v1/events"
	pathJSON   = "/v1/json" // of 1 MB
)

const (
	eventCount = 500
	eventPause = 100 * time.Microsecond // so that each comes alone, as tokens do
)

func writeEvents(w *bufio.Writer) {
	const usage = `,"usage":{"prompt_tokens":30,"completion_tokens":500}`
	for i := range eventCount {
		said := ""
		if i == eventCount-1 {
			said = usage
		}
		_, _ = fmt.Fprintf(w, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764000000,"model":"m",`+
			`"choices":[{"index":0,"delta":{"content":" word%d"},"finish_reason":null}]%s}`+"\n\n", i, said)
		_ = w.Flush()
		time.Sleep(eventPause)
	}
	_, _ = w.WriteString("data: [DONE]\n\n")
}

// longJSON is an answer of 1 MB.
func longJSON() []byte {
	return fmt.Appendf(nil, `{"choices":[{"index":0,"message":{"role":"assistant","content":%q}}],"usage":{"prompt_tokens":30,"completion_tokens":500}}`,
		strings.Repeat("the words of a line of eighty characters, of which an answer has many thousands\n", 1_000_000/81))
}

// startUpstream serves what every listener leads to: a small answer, as cheap as
// possible, since it shares its core with the load, or a long one.
func startUpstream() (port int, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, fmt.Errorf("start upstream: %w", err)
	}
	body, long := []byte("hello\n"), longJSON()
	server := &fasthttp.Server{
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
		},
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
	}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().(*net.TCPAddr).Port, func() { _ = server.Shutdown() }, nil
}
