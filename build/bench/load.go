package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"fortio.org/fortio/periodic"
	"github.com/valyala/fasthttp"

	"github.com/sluice-ratelimit/sluice/build/sample"
)

// connections is how many requests are in flight at most. Envoy then always
// has work, and no queue to speak of.
const connections = 8

// clients are connections to one listener, kept over all its turns.
type clients []*client

// client is one connection. fortio says when it sends, fasthttp how.
type client struct {
	conn     net.Conn
	in       *bufio.Reader
	out      *bufio.Writer
	request  fasthttp.Request
	response fasthttp.Response

	keys   [][]byte // one of them goes with each request
	next   int
	stride int

	admitted, denied int
	timed            bool // note latencies
	latencies        []time.Duration
	err              error
}

// keyHeader is what tells clients apart.
const keyHeader = "x-user-id"

// makeKeys returns n keys of one length.
func makeKeys(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "user-%06d", i)
	}
	return keys
}

func dial(address string, keys [][]byte) (clients, error) {
	var list clients
	for i := range connections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			list.close()
			return nil, fmt.Errorf("dial listener: %w", err)
		}
		c := &client{
			conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn),
			// A stride that is prime visits all keys, far apart, and each
			// connection begins elsewhere.
			keys: keys, next: i * len(keys) / connections, stride: 7919,
		}
		c.request.SetRequestURI("http://api.example.com/v1/orders")
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

func (c *client) exchange() error {
	began := time.Now()
	c.request.Header.SetBytesV(keyHeader, c.keys[c.next])
	c.next = (c.next + c.stride) % len(c.keys)
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
		c.admitted++
	case fasthttp.StatusTooManyRequests:
		c.denied++
	default:
		return fmt.Errorf("answered with %d: %s", status, c.response.Body())
	}
	if c.timed {
		c.latencies = append(c.latencies, time.Since(began))
	}
	return nil
}

// is reports whether these are the same connections.
func (l clients) is(other clients) bool { return l[0] == other[0] }

// outcome is what became of the requests of a turn.
type outcome struct {
	admitted, denied int
	took             time.Duration
	latencies        []time.Duration // empty unless asked for
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

func (l clients) run(o periodic.RunnerOptions, timed bool) (outcome, error) {
	var runners []periodic.Runnable
	for _, c := range l {
		c.admitted, c.denied, c.timed, c.latencies = 0, 0, timed, c.latencies[:0]
		runners = append(runners, c)
		if err := c.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return outcome{}, err
		}
	}
	o.NumThreads, o.Resolution, o.Out, o.Stop = len(l), 1e-5, io.Discard, periodic.NewAborter()
	began := time.Now()
	runner := periodic.NewPeriodicRunner(&o)
	runner.Options().Runners = runners // those in o would be let go of
	runner.Run()
	result := outcome{took: time.Since(began)}
	for _, c := range l {
		if c.err != nil {
			return result, c.err
		}
		result.admitted += c.admitted
		result.denied += c.denied
		result.latencies = append(result.latencies, c.latencies...)
	}
	return result, nil
}

// percentile is in µs.
func (o outcome) percentile(share float64) float64 {
	var list []float64
	for _, d := range o.latencies {
		list = append(list, float64(d.Nanoseconds())/1e3)
	}
	return round(sample.Quantile(list, share))
}

// startUpstream serves what every listener leads to: a small answer, as cheap
// as possible, since it shares its core with the load.
func startUpstream() (address string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("start upstream: %w", err)
	}
	body := []byte("hello\n")
	server := &fasthttp.Server{
		Handler:               func(c *fasthttp.RequestCtx) { c.Response.SetBodyRaw(body) },
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
	}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), func() { _ = server.Shutdown() }, nil
}

// port is the number at the end of an address.
func port(address string) (int, error) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}
