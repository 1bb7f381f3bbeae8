package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

var (
	errOverloaded = errors.New("too many requests wait for a worker")
	errClosed     = errors.New("the filter closed the stream")
)

const statusClientGone = 499 // no client sees it

// exchange is one request on its way: through the filter, to the upstream and
// back through the filter.
type exchange struct {
	path     string // normal, with query
	client   netip.AddrPort
	local    netip.AddrPort // where it came in
	body     *upload        // nil if the request has none
	upstream *http.Response // what it answered, nil if the filter did
}

type exchangeKey struct{}

// ServeHTTP is the way of a request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.counts.requests.Add(1)
	client, ex := http.NewResponseController(w), &exchange{}
	// An upstream may answer before it has read all. HTTP/1.1 can always do so.
	_ = client.EnableFullDuplex()
	if r.Body != http.NoBody {
		ex.body = &upload{ReadCloser: r.Body, client: client, patience: p.options.BodyIdle}
		r.Body = ex.body
		defer p.finish(w, ex.body)
	}
	path, redirect, why := admit(r)
	if why != nil {
		p.turnAway(w, why)
		return
	}
	if redirect {
		w.Header().Set("Location", path)
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	ex.path = path
	var err error
	if ex.client, err = netip.ParseAddrPort(r.RemoteAddr); err != nil {
		p.refuse(w, http.StatusInternalServerError, "the connection has no address")
		return
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		ex.local, _ = netip.ParseAddrPort(local.String()) // none on a Unix socket
	}
	r.Header.Del("Upgrade") // see the package comment
	r.Header.Del("Expect")  // answered here, by the first read of the body
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, ex)))
}

// finish ends the connection of a request whose body has no end: nobody knows
// where the next request begins.
func (p *Proxy) finish(w http.ResponseWriter, body *upload) {
	_ = body.Close() // it knows what has failed
	if body.refusal() != nil && w.Header().Get("Connection") != "close" {
		_ = body.client.Flush()
		panic(http.ErrAbortHandler)
	}
}

// turnAway answers a request that the filter does not see.
func (p *Proxy) turnAway(w http.ResponseWriter, why *refusal) {
	w.Header().Set("Connection", "close")
	p.refuse(w, why.status, why.text)
}

func (p *Proxy) refuse(w http.ResponseWriter, status int, text string) {
	p.counts.refused.Add(1)
	http.Error(w, text, status)
}

// newReverseProxy does what is HTTP: hop-by-hop headers, streaming, trailers. Its
// transport is the filter.
func (p *Proxy) newReverseProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     p,
		FlushInterval: -1, // a response is passed on as it comes
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = p.options.Upstream.Scheme, p.options.Upstream.Host
			ex := r.In.Context().Value(exchangeKey{}).(*exchange)
			forward(r.Out.Header, r.In.Header, ex.client.Addr())
		},
		ErrorHandler: p.fail,
		ErrorLog:     slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
}

// forward writes the headers about the client as Envoy does where
// use_remote_address is set.
func forward(out, in http.Header, client netip.Addr) {
	for _, name := range []string{"Forwarded", "X-Forwarded-Host"} {
		if values, ok := in[name]; ok {
			out[name] = values
		}
	}
	chain := append(slices.Clone(in["X-Forwarded-For"]), client.Unmap().String())
	out.Set("X-Forwarded-For", strings.Join(chain, ","))
	out.Set("X-Forwarded-Proto", "http")
}

// RoundTrip takes a request through the filter. Only the reverse proxy calls it.
func (p *Proxy) RoundTrip(out *http.Request) (*http.Response, error) {
	ex := out.Context().Value(exchangeKey{}).(*exchange)
	worker, err := p.take(out.Context())
	if err != nil {
		return nil, err
	}
	held := true
	release := func() {
		if held {
			held = false
			p.free <- worker
		}
	}
	defer release()
	request := seen(out, ex)
	request.OnPause, request.Gone = release, out.Context().Done()
	request.Upstream = func(left *sim.Request) (*sim.Response, error) {
		release()
		return p.ask(out, left, ex), nil
	}
	res, err := p.host.Serve(worker, request)
	if err == nil && res.Reset {
		err = errClosed
	}
	if why := ex.body.refusal(); why != nil && ex.upstream == nil {
		return nil, why
	}
	if err == nil && ex.upstream != nil && !res.Local {
		return answer(ex.upstream, res), nil
	}
	if ex.upstream != nil { // the filter put something in its place
		_ = ex.upstream.Body.Close()
	}
	if err != nil {
		return nil, err
	}
	p.note(res)
	return local(out, res), nil
}

// take waits for a worker.
func (p *Proxy) take(ctx context.Context) (int, error) {
	if p.waiting.Add(1) > int64(p.options.Queue) {
		p.waiting.Add(-1)
		return 0, errOverloaded
	}
	defer p.waiting.Add(-1)
	select {
	case worker := <-p.free:
		return worker, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// seen is the request as the filter sees it.
func seen(out *http.Request, ex *exchange) *sim.Request {
	r := &sim.Request{
		Method: out.Method, Scheme: "http", Host: out.Host, Path: ex.path,
		HasBody:  out.Body != nil && out.Body != http.NoBody,
		ClientIP: ex.client.Addr().Unmap().String(), ClientPort: ex.client.Port(),
	}
	if ex.local.IsValid() {
		r.Properties = map[string][]byte{
			"destination.address": []byte(ex.local.String()),
			"destination.port":    binary.LittleEndian.AppendUint64(nil, uint64(ex.local.Port())),
		}
	}
	if out.ContentLength > 0 {
		r.Headers = append(r.Headers, [2]string{"content-length", strconv.FormatInt(out.ContentLength, 10)})
	}
	for _, name := range slices.Sorted(maps.Keys(out.Header)) {
		if name == "Content-Length" || name == "User-Agent" && out.Header.Get(name) == "" {
			continue // written above; the reverse proxy's word for none
		}
		for _, value := range out.Header[name] {
			r.Headers = append(r.Headers, [2]string{strings.ToLower(name), value})
		}
	}
	return r
}

// ask sends the request, as the filter left it, to the upstream.
func (p *Proxy) ask(out *http.Request, left *sim.Request, ex *exchange) *sim.Response {
	out.Method, out.Host = left.Method, left.Host
	setTarget(out.URL, left.Path)
	out.Header = header(left.Headers)
	out.Header.Del("Content-Length")
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = []string{""} // none, not Go's own
	}
	began := time.Now()
	answered, err := p.transport.RoundTrip(out) //nolint:bodyclose // passed on, or closed by RoundTrip
	if err != nil {
		return p.noAnswer(out, ex, err, time.Since(began))
	}
	answered.Body = newDownload(answered.Body, p.options.StreamIdle)
	ex.upstream = answered
	res := &sim.Response{Status: answered.StatusCode}
	for _, name := range slices.Sorted(maps.Keys(answered.Header)) {
		for _, value := range answered.Header[name] {
			res.Headers = append(res.Headers, [2]string{strings.ToLower(name), value})
		}
	}
	return res
}

// setTarget makes a URL whose request target is that path with its query.
func setTarget(u *url.URL, target string) {
	// Opaque goes out as it is; Path would be spelled anew.
	u.Opaque, u.RawQuery, u.ForceQuery = target, "", false
	if path, query, _ := strings.Cut(target, "?"); path == "//" { // of an Opaque, that would be an authority
		u.Opaque, u.Path, u.RawPath, u.RawQuery, u.ForceQuery = "", path, "", query, path != target
	}
}

// noAnswer is the response for a client whose upstream gave none.
func (p *Proxy) noAnswer(out *http.Request, ex *exchange, err error, after time.Duration) *sim.Response {
	if out.Context().Err() != nil || ex.body.refusal() != nil {
		return &sim.Response{Status: statusClientGone}
	}
	why := &refusal{http.StatusBadGateway, "the upstream cannot be reached"}
	var dial *net.OpError
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		why = &refusal{http.StatusGatewayTimeout, "the upstream did not answer in time"}
	case !errors.As(err, &dial) || dial.Op != "dial":
		why.text = "the upstream ended the connection without an answer"
	}
	p.counts.upstreamErrors.Add(1)
	p.log.Warn("no answer from the upstream", "status", why.status, "after", after, "error", err)
	return plain(why)
}

// plain is a response that says why there is no other.
func plain(why *refusal) *sim.Response {
	return &sim.Response{
		Status: why.status, Body: []byte(why.text + "\n"),
		Headers: [][2]string{{"content-type", "text/plain"}, {"content-length", strconv.Itoa(len(why.text) + 1)}},
	}
}

// answer is the upstream's response with the headers the filter left.
func answer(upstream *http.Response, res *sim.Response) *http.Response {
	passed := *upstream
	passed.StatusCode, passed.Status = res.Status, fmt.Sprintf("%d %s", res.Status, http.StatusText(res.Status))
	passed.Header = header(res.Headers)
	return &passed
}

// local is a response that does not come from the upstream.
func local(out *http.Request, res *sim.Response) *http.Response {
	return &http.Response{
		StatusCode: res.Status, Header: header(res.Headers), Request: out,
		Body: io.NopCloser(bytes.NewReader(res.Body)), ContentLength: int64(len(res.Body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

func header(fields [][2]string) http.Header {
	h := make(http.Header, len(fields))
	for _, f := range fields {
		h.Add(f[0], f[1])
	}
	return h
}

// note counts a response that is not the upstream's.
func (p *Proxy) note(res *sim.Response) {
	switch {
	case res.Details == "wasm_fail_stream":
		p.counts.filterFailures.Add(1)
		p.broken.Store(true)
	case res.Local:
		p.counts.answered.Add(1)
	}
}

// fail answers where there is no response at all.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	var why *refusal
	switch {
	case errors.As(err, &why):
		p.turnAway(w, why)
	case r.Context().Err() != nil:
		w.WriteHeader(statusClientGone)
	case errors.Is(err, errClosed):
		panic(http.ErrAbortHandler)
	case errors.Is(err, errOverloaded):
		p.refuse(w, http.StatusServiceUnavailable, err.Error())
	default:
		p.log.Error("answer a request", "error", err)
		p.refuse(w, http.StatusBadGateway, "the request could not be answered")
	}
}

// newTransport reaches the upstream. It adds nothing of its own: no proxy of
// the environment, no compression.
func newTransport(o Options) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &stalling{Conn: c, patience: o.BodyIdle}, nil
		},
		ResponseHeaderTimeout:  o.Timeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		TLSHandshakeTimeout:    5 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
}
