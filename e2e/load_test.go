package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
func (l load) one(statuses []int16, c int, nth func(i int) request) error {
	conn, err := net.Dial("tcp", l.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	in, out := bufio.NewReaderSize(conn, 64<<10), bufio.NewWriterSize(conn, 64<<10)
	for i := c; i < len(statuses); i += l.connections {
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		r := nth(i)
		fmt.Fprintf(out, "GET %s HTTP/1.1\r\nhost: api.example.com\r\n", r.path)
		if r.name != "" {
			fmt.Fprintf(out, "%s: %s\r\n", r.name, r.value)
		}
		_, _ = out.WriteString("\r\n")
		if err := out.Flush(); err != nil {
			return fmt.Errorf("write request %d: %w", i, err)
		}
		if statuses[i], err = readStatus(in); err != nil {
			return fmt.Errorf("read the answer to request %d: %w", i, err)
		}
	}
	return nil
}

// readStatus reads one response and returns its status.
func readStatus(in *bufio.Reader) (int16, error) {
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return int16(res.StatusCode), err
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
