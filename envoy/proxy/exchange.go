package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

var errClosed = errors.New("the filter closed the stream")

// exchange is one request on its way: through the filter, to the upstream and
// back through the filter.
type exchange struct {
	*Proxy
	path     string // normal, with query
	client   netip.AddrPort
	local    netip.AddrPort // where it came in
	received atomic.Int64   // bytes of the request's body
}

// ServeHTTP takes a request through the filter to the upstream. A reverse proxy does
// what is HTTP, such as hop-by-hop headers, streaming and trailers; its transport is the
// filter.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.counts.requests.Add(1)
	path, redirect, err := admit(r)
	switch {
	case err != nil:
		p.counts.refused.Add(1)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case redirect:
		http.Redirect(w, r, path, http.StatusTemporaryRedirect)
		return
	}
	if r.ContentLength < 0 {
		// The upstream may answer before it has read all. Before a response on a
		// connection that goes on, net/http would read the rest.
		w.Header().Set("Connection", "close")
	}
	x := &exchange{Proxy: p, path: path}
	x.client, _ = netip.ParseAddrPort(r.RemoteAddr)
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		x.local, _ = netip.ParseAddrPort(local.String())
	}
	r.Header.Del("Upgrade") // none is taken
	r.Header.Del("Expect")  // answered here, by the first read of the body
	reverse := httputil.ReverseProxy{
		Transport: x, Rewrite: x.forward, ErrorHandler: x.fail,
		FlushInterval: -1, // a response is passed on as it comes
		ErrorLog:      slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	reverse.ServeHTTP(w, r)
}

// forward writes the headers about the client as Envoy does where
// use_remote_address is set.
func (x *exchange) forward(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host = x.options.Upstream.Scheme, x.options.Upstream.Host
	for _, name := range []string{"Forwarded", "X-Forwarded-Host"} {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
	chain := append(slices.Clone(r.In.Header["X-Forwarded-For"]), x.client.Addr().Unmap().String())
	r.Out.Header.Set("X-Forwarded-For", strings.Join(chain, ","))
	r.Out.Header.Set("X-Forwarded-Proto", "http")
}

// RoundTrip takes a request through the filter. Only the reverse proxy calls it.
func (x *exchange) RoundTrip(out *http.Request) (*http.Response, error) {
	var worker int
	select {
	case worker = <-x.free:
	case <-out.Context().Done():
		return nil, out.Context().Err()
	}
	release := sync.OnceFunc(func() { x.free <- worker })
	defer release()
	request := x.seen(out)
	request.OnPause, request.Gone = release, out.Context().Done()
	s, err := x.host.Start(worker, request)
	if err != nil {
		return nil, err
	}
	s.Wait()
	if left := s.Outgoing(); left != nil {
		release()
		answered := x.ask(out, left)
		if out.Context().Err() != nil {
			_ = s.Reset(sim.ClientGone)
		}
		return x.pass(s, answered)
	}
	res, err := s.Finish()
	if err != nil {
		return nil, err
	}
	return x.answer(out, res)
}

// pass takes an upstream's answer through the filter, its body as it is read.
func (x *exchange) pass(s *sim.Exchange, upstream *http.Response) (*http.Response, error) {
	end := upstream.Body == http.NoBody || upstream.ContentLength == 0
	res, err := s.Answer(&sim.Response{Status: upstream.StatusCode, Headers: fields(upstream.Header)}, end)
	if err == nil && !res.Local && !res.Reset {
		upstream.StatusCode, upstream.Status, upstream.Header = res.Status, "", header(res.Headers)
		if !end {
			upstream.Body = &body{upstream.Body, s, upstream}
		}
		return upstream, nil
	}
	_ = upstream.Body.Close() // the filter put something in its place
	if err != nil {
		return nil, err
	}
	return x.answer(upstream.Request, res)
}

// answer is what the filter itself answered.
func (x *exchange) answer(out *http.Request, res *sim.Response) (*http.Response, error) {
	switch {
	case res.Reset:
		return nil, errClosed
	case res.Details == "wasm_fail_stream":
		x.counts.filterFailures.Add(1)
	case res.Local:
		x.counts.answered.Add(1)
	}
	return &http.Response{
		StatusCode: res.Status, Header: header(res.Headers), Request: out,
		Body: io.NopCloser(bytes.NewReader(res.Body)), ContentLength: int64(len(res.Body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// seen is the request as the filter sees it.
func (x *exchange) seen(out *http.Request) *sim.Request {
	r := &sim.Request{
		Method: out.Method, Host: out.Host, Path: x.path, Headers: fields(out.Header),
		HasBody:  out.Body != nil && out.Body != http.NoBody,
		ClientIP: x.client.Addr().Unmap().String(), ClientPort: x.client.Port(), Received: x.received.Load,
	}
	if r.HasBody {
		out.Body = &counted{out.Body, &x.received}
	}
	if x.local.IsValid() {
		r.Properties = map[string][]byte{
			"destination.address": []byte(x.local.String()),
			"destination.port":    binary.LittleEndian.AppendUint64(nil, uint64(x.local.Port())),
		}
	}
	return r
}

// ask sends the request, as the filter left it, to the upstream. Where that does not answer,
// the answer says so.
func (x *exchange) ask(out *http.Request, left *sim.Request) *http.Response {
	target, err := url.ParseRequestURI(left.Path)
	if err != nil {
		return instead(out, http.StatusServiceUnavailable, "upstream connect error: "+err.Error())
	}
	target.Scheme, target.Host = out.URL.Scheme, out.URL.Host
	out.Method, out.Host, out.URL, out.Header = left.Method, left.Host, target, header(left.Headers)
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // none, not Go's own
	}
	began := time.Now()
	answered, err := x.transport.RoundTrip(out)
	if err == nil {
		return answered
	}
	status, why := http.StatusBadGateway, "the upstream gave no answer\n"
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		status, why = http.StatusGatewayTimeout, "the upstream did not answer in time\n"
	}
	if out.Context().Err() == nil { // the client waits
		x.counts.upstreamErrors.Add(1)
		x.log.Warn("no answer from the upstream", "status", status, "after", time.Since(began), "error", err)
	}
	return instead(out, status, why)
}

// instead answers in place of the upstream.
func instead(out *http.Request, status int, why string) *http.Response {
	return &http.Response{
		StatusCode: status, Request: out, Body: io.NopCloser(strings.NewReader(why)), ContentLength: int64(len(why)),
		Header: http.Header{"Content-Type": {"text/plain"}, "Content-Length": {strconv.Itoa(len(why))}},
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// fail answers where there is no response at all.
func (x *exchange) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errClosed) {
		panic(http.ErrAbortHandler)
	}
	if r.Context().Err() == nil { // the client waits
		x.log.Error("answer a request", "error", err)
	}
	http.Error(w, "the request could not be answered", http.StatusBadGateway)
}

// fields are headers as the filter sees them. An empty User-Agent is the reverse
// proxy's word for none.
func fields(h http.Header) (list [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			if name != "User-Agent" || value != "" {
				list = append(list, [2]string{strings.ToLower(name), value})
			}
		}
	}
	return list
}

func header(fields [][2]string) http.Header {
	h := make(http.Header, len(fields))
	for _, f := range fields {
		h.Add(f[0], f[1])
	}
	return h
}

// newTransport reaches the upstream. It adds nothing of its own: no proxy of
// the environment, no compression.
func newTransport(timeout time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy, t.DisableCompression, t.MaxIdleConnsPerHost = nil, true, 256
	t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = timeout, maxHeaderBytes
	return t
}
