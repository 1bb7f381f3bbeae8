package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// stalling is a connection whose other end has to go on reading: a write that
// gets no byte across for that long fails. A slow reader is not cut.
type stalling struct {
	net.Conn
	patience time.Duration
}

func (c *stalling) Write(p []byte) (written int, err error) {
	for {
		if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(p[written:])
		written += n
		if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return written, err
		}
	}
}

// CloseWrite lets net/http end a connection so that its last answer arrives.
func (c *stalling) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// upload is the body of a request. A client that is silent for too long ends
// it.
type upload struct {
	io.ReadCloser
	client   *http.ResponseController
	patience time.Duration
	failed   atomic.Pointer[error] // the end that was none
}

func (b *upload) Read(p []byte) (int, error) {
	defer b.hurry()()
	n, err := b.ReadCloser.Read(p)
	b.note(err)
	return n, err
}

// Close reads some of what is left, as net/http does to keep the connection.
func (b *upload) Close() error {
	defer b.hurry()()
	err := b.ReadCloser.Close()
	b.note(err)
	return err
}

func (b *upload) note(err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.failed.CompareAndSwap(nil, &err)
	}
}

// hurry limits reading until it is called off: in between it is the upstream
// that takes its time.
func (b *upload) hurry() (calledOff func()) {
	_ = b.client.SetReadDeadline(time.Now().Add(b.patience))
	return func() { _ = b.client.SetReadDeadline(time.Time{}) }
}

// refusal is the answer to a request whose body has no end; nil if it has one,
// or no body.
func (b *upload) refusal() *refusal {
	if b == nil {
		return nil
	}
	err := b.failed.Load()
	switch {
	case err == nil:
		return nil
	case errors.Is(*err, os.ErrDeadlineExceeded):
		return &refusal{http.StatusRequestTimeout, "the request body stopped coming"}
	}
	return &refusal{http.StatusBadRequest, "malformed request body"}
}

// download is the body of a response. An upstream that is silent for too long
// ends it.
type download struct {
	io.ReadCloser
	patience time.Duration
	silence  *time.Timer
}

func newDownload(body io.ReadCloser, patience time.Duration) *download {
	d := &download{ReadCloser: body, patience: patience}
	d.silence = time.AfterFunc(patience, func() { _ = body.Close() })
	d.silence.Stop()
	return d
}

func (d *download) Read(p []byte) (int, error) {
	d.silence.Reset(d.patience)
	defer d.silence.Stop()
	return d.ReadCloser.Read(p)
}
