package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// load sends each request as soon as the one before is answered. It writes HTTP/1.1 by
// hand, because the client of net/http takes more CPU than the proxy under test.
type load struct {
	address     string
	connections int
}

// request is one request of a load: a GET with one header.
type request struct {
	path  string
	name  string // of the header, "" = none
	value string
}

// send sends n requests, nth(0) to nth(n-1), over all connections, and returns the
// status of each.
func (l load) send(t testing.TB, n int, nth func(i int) request) []int16 {
	statuses, err := l.try(n, nth)
	require.NoError(t, err)
	return statuses
}

// try is send for other goroutines than the test's.
func (l load) try(n int, nth func(i int) request) ([]int16, error) {
	statuses := make([]int16, n)
	errs := make([]error, l.connections)
	atOnce(l.connections, func(c int) { errs[c] = l.one(statuses, c, nth) })
	return statuses, errors.Join(errs...)
}

// one sends every request i with i mod connections = c.
func (l load) one(statuses []int16, c int, nth func(i int) request) (err error) {
	conn := &connection{}
	defer conn.close()
	for i := c; i < len(statuses); i += l.connections {
		r, line := nth(i), ""
		if r.name != "" {
			line = r.name + ": " + r.value
		}
		statuses[i], err = conn.ask(l.address, r.path, line)
		if err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return nil
}

// connection sends one request after the other.
type connection struct {
	conn net.Conn
	in   *bufio.Reader
}

// ask sends a request with one more header, or none, and returns the status of the response.
func (c *connection) ask(address, path, line string) (status int16, err error) {
	if c.conn == nil {
		c.conn, err = net.Dial("tcp", address)
		if err != nil {
			return 0, err
		}
		c.in = bufio.NewReaderSize(c.conn, 64<<10)
	}
	if line != "" {
		line += "\r\n"
	}
	if err := c.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nhost: api.example.com\r\n%s\r\n", path, line); err != nil {
		return 0, err
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return int16(res.StatusCode), err
}

func (c *connection) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// perKey returns how many requests of each key have passed, where the i-th is of key(i). The others
// must have been denied.
func perKey(t *testing.T, statuses []int16, keys int, key func(i int) int) []int {
	passed := make([]int, keys)
	for i, status := range statuses {
		require.Contains(t, []int16{allowed, denied}, status)
		if status == allowed {
			passed[key(i)]++
		}
	}
	return passed
}

// goOn sends requests until it is ended, which returns their statuses.
func (l load) goOn(t *testing.T, nth func(i int) request) (end func() (statuses []int16)) {
	var all []int16
	var failed error
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		for ctx.Err() == nil && failed == nil {
			var some []int16
			some, failed = l.try(400, func(i int) request { return nth(len(all) + i) })
			all = append(all, some...)
		}
	})
	return func() []int16 {
		cancel()
		sending.Wait()
		require.NoError(t, failed)
		return all
	}
}

// count returns how many of the statuses are status.
func count(statuses []int16, status int16) (n int) {
	for _, s := range statuses {
		if s == status {
			n++
		}
	}
	return n
}
