package explain

import (
	"cmp"
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Request is a request that somebody describes instead of sending it. The
// request lacks whatever is empty.
type Request struct {
	Method, Host, Path string
	Headers            map[string][]string // by name in lower case
	ClientAddress      string              // with or without port
	Attributes         map[string]string   // by path, its segments joined by dots; see request.Source
	Keys               bool                // say the key of each rule, whatever the rule is for, and of credentials the value
}

// ParseRequest reads a description:
//
//	{"method":"GET","host":"a","path":"/x","headers":{"x-user-id":"alice"},"client_ip":"192.0.2.7"}
//
// No error repeats a value: it may be a secret.
func ParseRequest(text string) (*Request, error) {
	doc, err := policy.ParseJSON(text)
	if err != nil || doc.Kind != policy.Object {
		return nil, errors.New("must be a JSON object in ASCII")
	}
	r := &Request{Method: "GET", Path: "/", Headers: map[string][]string{}, Attributes: map[string]string{}}
	for i := range doc.Fields {
		if err := r.parseField(&doc.Fields[i]); err != nil {
			return nil, err
		}
	}
	if r.ClientAddress != "" {
		if _, err := netip.ParseAddr(r.ClientAddress); err != nil {
			return nil, errors.New("client_ip: is no IP address")
		}
	}
	if !strings.HasPrefix(r.Path, "/") {
		return nil, errors.New("path: must start with /")
	}
	return r, nil
}

func (r *Request) parseField(f *policy.Field) error {
	route := ""
	into, known := map[string]*string{
		"method": &r.Method, "route": &route, "host": &r.Host, "path": &r.Path, "client_ip": &r.ClientAddress,
	}[f.Name]
	switch {
	case f.Name == "headers":
		return r.parseHeaders(f.Value)
	case f.Name == "properties":
		return r.parseProperties(f.Value)
	case f.Name == "keys" && f.Value.Kind == policy.Bool:
		r.Keys = f.Value.Text == "true"
		return nil
	case !known:
		return errors.New(strconv.Quote(f.Name) + " is none of method, host, path, headers, client_ip, route, properties, keys")
	case f.Value.Kind != policy.String:
		return errors.New(f.Name + ": must be text")
	}
	*into = f.Value.Text
	if f.Name == "route" {
		r.Attributes["xds.route_name"] = route
	}
	return nil
}

// parseProperties reads attributes by their paths, segments joined by dots.
func (r *Request) parseProperties(n *policy.Node) error {
	if n.Kind != policy.Object {
		return errors.New("properties: must be an object from paths to texts")
	}
	for _, f := range n.Fields {
		if f.Value.Kind != policy.String {
			return errors.New("properties: " + strconv.Quote(f.Name) + " must be text")
		}
		r.Attributes[f.Name] = f.Value.Text
	}
	return nil
}

func (r *Request) parseHeaders(n *policy.Node) error {
	if n.Kind != policy.Object {
		return errors.New("headers: must be an object from names to values")
	}
	for i := range n.Fields {
		f := &n.Fields[i]
		values := []*policy.Node{f.Value}
		if f.Value.Kind == policy.List {
			values = f.Value.Items
		}
		name := strings.ToLower(f.Name)
		if name == "" || name[0] == ':' {
			return errors.New("headers: " + strconv.Quote(f.Name) + " is no header: give method, host and path beside headers")
		}
		for _, v := range values {
			if v.Kind != policy.String {
				return errors.New("headers: " + strconv.Quote(f.Name) + " must be text or a list of texts")
			}
			r.Headers[name] = append(r.Headers[name], v.Text)
		}
	}
	return nil
}

// dryRun is a Host with a described request at one instant. It reads the proxy's
// counters; what is written to them stays here.
type dryRun struct {
	*Request
	proxy   engine.Host
	now     int64
	written map[string]written
	missed  bool // something was read that the description leaves open
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
	switch name {
	case ":method":
		return d.Method, d.Method != ""
	case ":authority":
		return d.Host, d.Host != ""
	case ":path":
		return d.Path, d.Path != ""
	}
	if values := d.Headers[name]; len(values) > 0 {
		return values[0], true
	}
	return "", false
}

func (d *dryRun) JoinedHeader(name string) (string, bool) {
	if strings.HasPrefix(name, ":") {
		return d.Header(name)
	}
	values, present := d.Headers[name]
	return strings.Join(values, ","), present
}

func (d *dryRun) AppendHeader(values []string, name string) []string {
	return append(values, d.Headers[name]...)
}

// ClientAddress is in the attribute source.address, too. That has the connection's port, so
// it does not follow from the address alone.
func (d *dryRun) ClientAddress() (string, bool) {
	address := cmp.Or(d.Request.ClientAddress, d.Attributes["source.address"])
	d.missed = d.missed || address == ""
	return address, address != ""
}

// Monotonic is the proxy's: leases end by it.
func (d *dryRun) Monotonic() int64 { return d.proxy.Monotonic() }

// Counted asks the proxy: no decision depends on it.
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
