package explain

import (
	"cmp"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// dryRun is an engine.Host with a described request at one instant. It reads the proxy's
// counters, and keeps to itself what is written to them.
type dryRun struct {
	*Request
	proxy   engine.Host
	now     int64
	written map[string]written
	missed  int // how often something was read that the description leaves open
}

type written struct {
	value []byte
	cas   uint32
}

func newDryRun(r *Request, proxy engine.Host, now int64) *dryRun {
	return &dryRun{Request: r, proxy: proxy, now: now, written: map[string]written{}}
}

func (d *dryRun) Now() int64 { return d.now }

func (d *dryRun) Header(name string) (string, bool) {
	values := d.AppendHeader(nil, name)
	return append(values, "")[0], len(values) > 0
}

func (d *dryRun) JoinedHeader(name string) (string, bool) {
	values := d.AppendHeader(nil, name)
	return strings.Join(values, ","), len(values) > 0
}

func (d *dryRun) AppendHeader(values []string, name string) []string {
	text := ""
	switch name {
	case ":method":
		text = d.Method
	case ":authority":
		text = d.Host
	case ":path":
		text = d.Path
	}
	if text != "" {
		values = append(values, text)
	}
	return append(values, d.Headers[name]...)
}

// ClientAddress is the described address, or else that of the attribute source.address. The
// attribute has a port as well, so it does not follow from the address.
func (d *dryRun) ClientAddress() (string, bool) {
	address := cmp.Or(d.Request.ClientAddress, d.Attributes["source.address"])
	if address == "" {
		d.missed++
	}
	return address, address != ""
}

// Monotonic is the proxy's clock, because leases end by it.
func (d *dryRun) Monotonic() int64 { return d.proxy.Monotonic() }

// Counted asks the proxy. No decision depends on it.
func (d *dryRun) Counted(domain, rule, metric string) uint64 {
	return d.proxy.Counted(domain, rule, metric)
}

// Get returns copies, because the engine writes into what it gets.
func (d *dryRun) Get(key []byte) ([]byte, uint32, state.Status) {
	if w, ok := d.written[string(key)]; ok {
		return append([]byte(nil), w.value...), w.cas, state.OK
	}
	value, cas, status := d.proxy.Get(key)
	return append([]byte(nil), value...), cas, status
}

// Set follows the rules of Envoy's shared data, see state.Store.
func (d *dryRun) Set(key, value []byte, cas uint32) state.Status {
	_, have, status := d.Get(key)
	switch {
	case status == state.Failed:
		return state.Failed
	case status == state.OK && cas != 0 && cas != have:
		return state.Mismatch
	}
	d.written[string(key)] = written{append([]byte(nil), value...), have + 1}
	return state.OK
}

// headerOf has the headers that attributes are read from.
var headerOf = map[string]string{
	"request.method":    ":method",
	"request.host":      ":authority",
	"request.path":      ":path",
	"request.useragent": "user-agent",
	"request.referer":   "referer",
	"request.id":        "x-request-id",
}

// Attribute returns an attribute that the description gives, or that follows from it. Of any
// other one the description does not say whether the request has it.
func (d *dryRun) Attribute(path string) (string, bool) {
	path = strings.ReplaceAll(path, "\x00", ".")
	if value, present := d.Attributes[path]; present {
		return value, true
	}
	target, query, _ := strings.Cut(d.Path, "?")
	switch path {
	case "request.url_path":
		return target, true
	case "request.query":
		return query, true
	}
	value, present := d.Header(headerOf[path])
	isKnown := headerOf[path] != "" && path != "request.id" // Envoy adds an id if a client sends none
	if present || isKnown {
		return value, present
	}
	d.missed++
	return "", false
}
