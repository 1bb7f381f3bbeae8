package sim_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
)

// bytesCodec passes messages through as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string                  { return "proto" }
func (bytesCodec) Marshal(m any) ([]byte, error) { return *m.(*[]byte), nil }
func (bytesCodec) Unmarshal(b []byte, m any) error {
	*m.(*[]byte) = append([]byte(nil), b...)
	return nil
}

var _ encoding.Codec = bytesCodec{}

// serveCommands is the server of the scenarios over a network.
func (d *dispatch) serveCommands(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var server *grpc.Server
	handler := func(_ any, stream grpc.ServerStream) error {
		for {
			var b []byte
			if err := stream.RecvMsg(&b); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				d.canceled.Add(1)
				return err
			}
			word, rest, _ := strings.Cut(string(b), " ")
			for word == "later" {
				time.Sleep(pause)
				word, rest, _ = strings.Cut(rest, " ")
			}
			answer := []byte(rest)
			switch word {
			case "echo":
				_ = stream.SendMsg(&answer)
			case "both":
				first, second, _ := bytes.Cut(answer, []byte("/"))
				_ = stream.SendMsg(&first)
				_ = stream.SendMsg(&second)
			case "close":
				code, _ := strconv.Atoi(rest)
				return status.Error(codes.Code(code), "asked to")
			case "die":
				go server.Stop()
				<-stream.Context().Done()
				return nil
			}
		}
	}
	server = grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(handler))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

// dispatch is a server that does what is posted, by the name of the request.
type dispatch struct {
	mu    sync.Mutex
	posts map[string]chan step

	canceled atomic.Int64 // streams of the commands' server
}

func (d *dispatch) post(name string) chan step {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.posts[name] == nil {
		d.posts[name] = make(chan step, 10)
	}
	return d.posts[name]
}

func (d *dispatch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.Header.Get("X-Do") != "" { // of a scenario
		_, _ = w.Write([]byte("from the upstream"))
		return
	}
	post := d.post(r.Header.Get("X-Name"))
	for {
		select {
		case s := <-post:
			d.do(w, s)
			if s.end {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

func (d *dispatch) do(w http.ResponseWriter, s step) {
	switch s.verb {
	case "answer":
		for _, f := range s.fields() {
			w.Header().Set(f[0], f[1])
		}
		code, _ := strconv.Atoi(s.words[0])
		w.WriteHeader(code)
	case "chunk":
		_, _ = w.Write([]byte(s.words[0]))
	case "trailers":
		for _, f := range s.fields() {
			w.Header().Set(http.TrailerPrefix+f[0], f[1])
		}
	case "reset":
		panic(http.ErrAbortHandler)
	}
	if !s.end {
		w.(http.Flusher).Flush()
	}
}

// serveAll starts what clusters lead to.
func serveAll(t *testing.T) (d *dispatch, addresses map[string]string) {
	t.Helper()
	d = &dispatch{posts: map[string]chan step{}}
	server := httptest.NewUnstartedServer(d)
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	return d, map[string]string{
		"http1":    address,
		"upstream": address,
		"quota":    d.serveCommands(t),
		"dying":    d.serveCommands(t),
		"refused":  "127.0.0.1:1", // no test is given that port
	}
}
