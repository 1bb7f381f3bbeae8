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

	"golang.org/x/net/http/httpguts"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/envoy/target"
)

// A request goes through these phases, one function each:
//
//	ServeHTTP        admits it, and hands it to a reverse proxy
//	forward          writes the headers about the client
//	RoundTrip        does what follows:
//	  filterRequest    a worker's filter sees the request, and lets it through or answers it
//	  callUpstream     the upstream answers
//	  filterResponse   the filter sees the answer's headers, then its body as it is read
//	fail             answers if RoundTrip has no response
//
// The reverse proxy does what is HTTP, such as hop-by-hop headers, streaming and trailers;
// the trip is its transport.

// trip is one request and its answer, on their way through the proxy. The filter's part of it
// is a sim.Exchange.
type trip struct {
	*Proxy
	path     string // normal, with query
	client   netip.AddrPort
	local    netip.AddrPort // the address of the listener that accepted it
	received atomic.Int64   // bytes of the request's body
}

// errClosed says that the filter closed the stream instead of answering.
var errClosed = errors.New("the filter closed the stream")

// ServeHTTP takes a request through the filter to the upstream.
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
		// The upstream may answer before the body has ended. To reuse the connection,
		// net/http would read the rest of the body before it sends the answer.
		w.Header().Set("Connection", "close")
	}
	r.Header.Del("Upgrade") // upgrades are not supported
	r.Header.Del("Expect")  // net/http answers it at the first read of the body
	t := p.newTrip(r, path)
	reverse := httputil.ReverseProxy{
		Transport:     t,
		Rewrite:       t.forward,
		ErrorHandler:  t.fail,
		FlushInterval: -1, // each part of a response is passed on at once
		ErrorLog:      slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	reverse.ServeHTTP(w, r)
}

// admit refuses what the Envoy of a rendered bootstrap would not show to a filter. It
// returns the normal path of a request, and whether the client is to be redirected to it.
func admit(r *http.Request) (path string, redirect bool, err error) {
	for name := range r.Header {
		if strings.Contains(name, "_") { // some servers read it as a hyphen: a second spelling of a key
			return "", false, errors.New("a header's name has an underscore")
		}
	}
	switch {
	case r.Method == http.MethodConnect || r.Method != strings.ToUpper(r.Method): // "get" must not avoid a rule for GET
		return "", false, errors.New("unknown method")
	case r.Host == "" || !httpguts.ValidHostHeader(r.Host):
		return "", false, errors.New("no host, or a malformed one")
	}
	// Clients of a forward proxy send absolute URLs.
	return target.Normalize(strings.TrimPrefix(r.RequestURI, "http://"+r.Host))
}

func (p *Proxy) newTrip(r *http.Request, path string) *trip {
	t := &trip{Proxy: p, path: path}
	t.client, _ = netip.ParseAddrPort(r.RemoteAddr)
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if ok {
		t.local, _ = netip.ParseAddrPort(local.String())
	}
	return t
}

// forward writes the headers about the client as Envoy does if use_remote_address is set.
func (t *trip) forward(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = t.options.Upstream.Scheme
	r.Out.URL.Host = t.options.Upstream.Host
	for _, name := range []string{"Forwarded", "X-Forwarded-Host"} {
		values, ok := r.In.Header[name]
		if ok {
			r.Out.Header[name] = values
		}
	}
	chain := append(slices.Clone(r.In.Header["X-Forwarded-For"]), t.client.Addr().Unmap().String())
	r.Out.Header.Set("X-Forwarded-For", strings.Join(chain, ","))
	r.Out.Header.Set("X-Forwarded-Proto", "http")
}

// RoundTrip takes a request from the reverse proxy through the filter to the upstream, and
// the answer back through the filter.
func (t *trip) RoundTrip(out *http.Request) (*http.Response, error) {
	exchange, err := t.filterRequest(out)
	if err != nil {
		return nil, err
	}
	forwarded := exchange.Outgoing()
	if forwarded == nil { // the filter did not let it through
		reply, err := exchange.Finish()
		if err != nil {
			return nil, err
		}
		return t.filterReply(out, reply)
	}
	response := t.callUpstream(out, forwarded)
	if out.Context().Err() != nil {
		_ = exchange.Reset(sim.ClientGone) // it has ended already if this fails
	}
	return t.filterResponse(exchange, response)
}

// filterRequest waits for an idle worker, and shows the request to its filter. While the filter
// pauses the request, the worker is free for others.
func (t *trip) filterRequest(out *http.Request) (*sim.Exchange, error) {
	var worker int
	select {
	case worker = <-t.idle:
	case <-out.Context().Done():
		return nil, out.Context().Err()
	}
	release := sync.OnceFunc(func() { t.idle <- worker })
	defer release()
	request := t.request(out)
	request.OnPause = release
	request.Gone = out.Context().Done()
	exchange, err := t.host.Start(worker, request)
	if err != nil {
		return nil, err
	}
	exchange.Wait()
	return exchange, nil
}

// request returns the request as the filter sees it.
func (t *trip) request(out *http.Request) *sim.Request {
	r := &sim.Request{
		Method:     out.Method,
		Host:       out.Host,
		Path:       t.path,
		Headers:    fields(out.Header),
		HasBody:    out.Body != nil && out.Body != http.NoBody,
		ClientIP:   t.client.Addr().Unmap().String(),
		ClientPort: t.client.Port(),
		Received:   t.received.Load,
	}
	if r.HasBody {
		out.Body = &requestBody{out.Body, &t.received}
	}
	if t.local.IsValid() {
		r.Properties = map[string][]byte{
			"destination.address": []byte(t.local.String()),
			"destination.port":    binary.LittleEndian.AppendUint64(nil, uint64(t.local.Port())),
		}
	}
	return r
}

// callUpstream sends the request, as the filter forwarded it, to the upstream. If that does
// not answer, it returns an error response in its place.
func (t *trip) callUpstream(out *http.Request, forwarded *sim.Request) *http.Response {
	address, err := url.ParseRequestURI(forwarded.Path)
	if err != nil {
		return errorResponse(out, http.StatusServiceUnavailable, "upstream connect error: "+err.Error())
	}
	address.Scheme = out.URL.Scheme
	address.Host = out.URL.Host
	out.URL = address
	out.Method = forwarded.Method
	out.Host = forwarded.Host
	out.Header = header(forwarded.Headers)
	_, ok := out.Header["User-Agent"]
	if !ok {
		out.Header.Set("User-Agent", "") // keeps net/http from sending its own
	}
	began := time.Now()
	response, err := t.transport.RoundTrip(out)
	if err == nil {
		return response
	}
	status, message := http.StatusBadGateway, "the upstream gave no answer\n"
	var netErr net.Error
	if errors.As(err, &netErr) && netErr.Timeout() {
		status, message = http.StatusGatewayTimeout, "the upstream did not answer in time\n"
	}
	if out.Context().Err() == nil { // the client still waits
		t.counts.upstreamErrors.Add(1)
		t.log.Warn("no answer from the upstream", "status", status, "after", time.Since(began), "error", err)
	}
	return errorResponse(out, status, message)
}

// filterResponse shows the upstream's answer to the filter: its headers now, its body as it
// is read. The filter may answer in its place.
func (t *trip) filterResponse(exchange *sim.Exchange, upstream *http.Response) (*http.Response, error) {
	end := upstream.Body == http.NoBody || upstream.ContentLength == 0
	head := &sim.Response{Status: upstream.StatusCode, Headers: fields(upstream.Header)}
	filtered, err := exchange.Answer(head, end)
	if err != nil {
		_ = upstream.Body.Close()
		return nil, err
	}
	if filtered.Local || filtered.Reset {
		_ = upstream.Body.Close()
		return t.filterReply(upstream.Request, filtered)
	}
	upstream.StatusCode = filtered.Status
	upstream.Status = "" // net/http writes the one of StatusCode
	upstream.Header = header(filtered.Headers)
	if !end {
		upstream.Body = &responseBody{upstream.Body, exchange, upstream}
	}
	return upstream, nil
}

// responseBody shows an upstream's body to the filter as it is read.
type responseBody struct {
	io.ReadCloser
	exchange *sim.Exchange
	upstream *http.Response
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var trailers [][2]string
	if errors.Is(err, io.EOF) {
		trailers = fields(b.upstream.Trailer)
	}
	last := errors.Is(err, io.EOF) && len(trailers) == 0
	if n > 0 && b.exchange.Chunk(p[:n], last) != nil {
		return 0, errClosed
	}
	// The filter can change nothing from here on: the body is out.
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF):
		_ = b.exchange.Reset(b.cause())
	case !last:
		_ = b.exchange.Trailers(trailers)
	case n == 0:
		_ = b.exchange.Chunk(nil, true)
	}
	return n, err
}

// cause returns why the body broke off.
func (b *responseBody) cause() sim.Cause {
	if b.upstream.Request.Context().Err() != nil {
		return sim.ClientGone
	}
	return sim.UpstreamReset
}

// Close ends the exchange if the body was not read to its end.
func (b *responseBody) Close() error {
	_ = b.exchange.Reset(sim.ClientGone)
	return b.ReadCloser.Close()
}

// requestBody counts what is read of a request's body.
type requestBody struct {
	io.ReadCloser
	read *atomic.Int64
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}

// filterReply counts an answer that the filter gave itself, and returns it as a response.
func (t *trip) filterReply(out *http.Request, reply *sim.Response) (*http.Response, error) {
	switch {
	case reply.Reset:
		return nil, errClosed
	case reply.Details == sim.FailedDetails:
		t.counts.filterFailures.Add(1)
	case reply.Local:
		t.counts.answered.Add(1)
	}
	return newResponse(out, reply.Status, header(reply.Headers), reply.Body), nil
}

// errorResponse returns what stands for an upstream's answer if there is none.
func errorResponse(out *http.Request, status int, message string) *http.Response {
	h := http.Header{"Content-Type": {"text/plain"}, "Content-Length": {strconv.Itoa(len(message))}}
	return newResponse(out, status, h, []byte(message))
}

func newResponse(out *http.Request, status int, h http.Header, body []byte) *http.Response {
	return &http.Response{
		StatusCode:    status,
		Header:        h,
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       out,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
	}
}

// fail answers a request for which RoundTrip has no response.
func (t *trip) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errClosed) {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	if r.Context().Err() == nil { // the client still waits
		t.log.Error("answer a request", "error", err)
	}
	http.Error(w, "the request could not be answered", http.StatusBadGateway)
}

// fields returns headers as the filter sees them. The reverse proxy writes an empty
// User-Agent if the client sent none.
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

// header returns the filter's headers as net/http has them.
func header(fields [][2]string) http.Header {
	h := make(http.Header, len(fields))
	for _, f := range fields {
		h.Add(f[0], f[1])
	}
	return h
}

// newTransport returns the way to the upstream. It uses no proxy of the environment, and
// asks for no compression.
func newTransport(timeout time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil
	t.DisableCompression = true
	t.MaxIdleConnsPerHost = 256
	t.ResponseHeaderTimeout = timeout
	t.MaxResponseHeaderBytes = maxHeaderBytes
	return t
}
