// Package replies is a connection to Redis that looks at each reply before the client reads it.
//
// The client makes room for as much as a reply announces, and a broken or hostile server may
// announce anything. A look also shows that the connection leads to a replica: the client would stay with it for good,
// though its address may lead to the new master by now.
package replies

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	elementBytes = 64 // that an element takes in the client
	maxDepth     = 8
	lineBytes    = 17 // that are kept of a line. One that says how long something is has fewer
	// errorBytes is how much of an error is looked at. Redis 6.2 puts where it happened before it.
	errorBytes = 160
	// leaveAfter is how long a connection to a replica is kept, so that servers which stay
	// replicas are not dialed all the time.
	leaveAfter = time.Second
)

var (
	errReply   = errors.New("its reply is none of Redis', or too large")
	errReplica = errors.New("it was left because it leads to a replica")
	readOnly   = []byte("-READONLY ")
)

// conn is a connection that ends with errReply at the first reply that would take more than maxReply, and with
// errReplica after one that says that it leads to a replica.
type conn struct {
	net.Conn
	maxReply int64 // bytes
	dialed   time.Time

	replyBytes int64 // that the reply which is being read takes

	lacks [maxDepth]int64 // by list that is being read: how many elements have not ended yet
	depth int
	skip  int64 // bytes of a string, with the end of its line
	line  []byte

	replica bool // the server has said that it is one
	err     error
}

// Dial is what the client connects with. No reply may take more than maxReply bytes. An address with a slash is the
// path of a Unix socket.
func Dial(maxReply int64) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (c net.Conn, err error) {
		network := "tcp"
		if strings.Contains(address, "/") {
			network = "unix"
		}
		if config != nil {
			c, err = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
		} else {
			c, err = dialer.DialContext(ctx, network, address)
		}
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, maxReply: maxReply, dialed: time.Now()}, nil
	}
}

func (r *conn) Read(b []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.Conn.Read(b)
	if r.parse(b[:n]); r.err != nil {
		return 0, r.err
	}
	if r.replica && time.Since(r.dialed) >= leaveAfter {
		r.err = errReplica // what the server has said so far is read
	}
	return n, err
}

// parse reads on in the reply: b is what the server has sent next. For example, a list has a string and another list:
//
//	the server sends   depth  lacks
//	*2\r\n             1      2
//	$3\r\nabc\r\n      1      1      element: 1 less
//	*1\r\n             2      1, 1   the outer list lacks this one until it ends
//	:7\r\n             0             element: the inner list has ended, and with it the outer one
func (r *conn) parse(b []byte) {
	for len(b) > 0 && r.err == nil {
		if r.skip > 0 {
			n := min(r.skip, int64(len(b)))
			b = b[n:]
			r.skip -= n
			if r.skip == 0 {
				r.endElement()
			}
			continue
		}
		part, ends := b, false
		if n := bytes.IndexByte(b, '\n') + 1; n > 0 {
			part, ends = b[:n], true
		}
		b = b[len(part):]
		r.line = append(r.line, part[:min(len(part), r.lineRoom(part[0]))]...)
		r.countBytes(int64(len(part)))
		if ends && r.err == nil {
			r.endLine()
			r.line = r.line[:0]
		}
	}
}

// lineRoom is how much more of a line is kept, which begins with first if it is new. Of a longer line the end is cut
// off, so length refuses it.
func (r *conn) lineRoom(first byte) int {
	if len(r.line) > 0 {
		first = r.line[0]
	}
	if first == '-' {
		return errorBytes - len(r.line)
	}
	return lineBytes - len(r.line)
}

// countBytes counts bytes that the reply takes.
func (r *conn) countBytes(n int64) {
	r.replyBytes += n
	if r.replyBytes > r.maxReply {
		r.err = errReply
	}
}

// endElement ends a string, a number or a list, and with it the lists whose last one it is.
func (r *conn) endElement() {
	for ; r.depth > 0; r.depth-- {
		r.lacks[r.depth-1]--
		if r.lacks[r.depth-1] > 0 {
			return
		}
	}
	r.replyBytes = 0
}

// endLine goes on after a line: it is a value, or it says how long one is.
func (r *conn) endLine() {
	switch r.line[0] {
	case '-':
		r.replica = r.replica || bytes.Contains(r.line, readOnly)
		r.endElement()
	case '+', ',', '(', ':':
		r.endElement()
	case '_', '#': // the client skips a fixed 3 (4) bytes here, so a longer line would put it out of step with us
		size := 3
		if r.line[0] == '#' {
			size = 4
		}
		if len(r.line) != size || r.line[size-2] != '\r' {
			r.err = errReply
		}
		r.endElement()
	case '$', '!', '=':
		r.beginString()
	case '%':
		r.beginList(2) // a key and a value
	case '*', '~', '>':
		r.beginList(1)
	default:
		r.err = errReply
	}
}

// nothing is what a line announces in place of a length, if there is no string or list.
const nothing = -1

// beginString goes on with the string that the line announces.
func (r *conn) beginString() {
	n, ok := r.length()
	switch {
	case !ok:
		r.err = errReply
	case n == nothing:
		r.endElement()
	default:
		r.countBytes(n)
		r.skip = n + 2
	}
}

// beginList goes on with the list that the line announces, each of whose members is so many elements.
func (r *conn) beginList(each int64) {
	n, ok := r.length()
	switch {
	case !ok:
		r.err = errReply
	case n == 0, n == nothing && each == 1: // there are no maps that are nothing
		r.endElement()
	case n > 0 && r.depth < maxDepth:
		r.countBytes(n * each * elementBytes)
		r.lacks[r.depth] = n * each
		r.depth++
	default:
		r.err = errReply
	}
}

// length is what the line announces: how long something is, or nothing.
func (r *conn) length() (n int64, ok bool) {
	text, ok := bytes.CutSuffix(r.line[1:], []byte("\r\n"))
	if ok && string(text) == "-1" {
		return nothing, true
	}
	size, err := strconv.ParseUint(string(text), 10, 32)
	return int64(size), ok && err == nil
}
