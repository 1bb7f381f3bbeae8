package host

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// requestHeader holds the request to explain. It is a header, and no query:
// access logs have queries, and a request has its client's credentials in it.
const requestHeader = "x-sluice-request"

// explain answers what the policy makes of a described request.
//
//	POST {path}explain
//	x-sluice-request: {"method":"GET","host":"a","path":"/x","headers":{"x-user-id":"alice"},"client_ip":"192.0.2.7"}
func (p *plugin) explain() {
	text, present := theProxy.Header(requestHeader)
	if !present {
		answer(400, problem("the header "+requestHeader+` must describe the request, as in {"method":"GET","host":"api.example.com","path":"/","headers":{"x-user-id":"alice"},"client_ip":"192.0.2.7"}`))
		return
	}
	d, err := describe(text)
	if err != nil {
		answer(400, problem(requestHeader+": "+err.Error()))
		return
	}
	answer(200, p.engine.Explain(nil, d))
}

// describe reads a description. No error repeats a value: it may be a secret.
func describe(text string) (*engine.Described, error) {
	doc, err := policy.ParseJSON([]byte(text))
	if err != nil || doc.Kind != policy.Object {
		return nil, errors.New("must be a JSON object in ASCII")
	}
	d := &engine.Described{Method: "GET", Path: "/", Headers: map[string][]string{}, Attributes: map[string]string{}}
	for i := range doc.Fields {
		f := &doc.Fields[i]
		if err := describeField(d, f); err != nil {
			return nil, err
		}
	}
	if d.ClientAddress != "" {
		if _, err := netip.ParseAddr(d.ClientAddress); err != nil {
			return nil, errors.New("client_ip: is no IP address")
		}
	}
	if !strings.HasPrefix(d.Path, "/") {
		return nil, errors.New("path: must start with /")
	}
	return d, nil
}

func describeField(d *engine.Described, f *policy.Field) error {
	route := ""
	into, known := map[string]*string{
		"method": &d.Method, "route": &route, "host": &d.Host, "path": &d.Path, "client_ip": &d.ClientAddress,
	}[f.Name]
	switch {
	case f.Name == "headers":
		return describeHeaders(d, f.Value)
	case f.Name == "properties":
		return describeProperties(d, f.Value)
	case !known:
		return errors.New(strconv.Quote(f.Name) + " is none of method, host, path, headers, client_ip, route, properties")
	case f.Value.Kind != policy.String:
		return errors.New(f.Name + ": must be text")
	}
	*into = f.Value.Text
	if f.Name == "route" {
		d.Attributes["route_name"] = route
	}
	return nil
}

// describeProperties reads attributes by their paths, segments joined by dots.
func describeProperties(d *engine.Described, n *policy.Node) error {
	if n.Kind != policy.Object {
		return errors.New("properties: must be an object from paths to texts")
	}
	for _, f := range n.Fields {
		if f.Value.Kind != policy.String {
			return errors.New("properties: " + strconv.Quote(f.Name) + " must be text")
		}
		d.Attributes[f.Name] = f.Value.Text
	}
	return nil
}

func describeHeaders(d *engine.Described, n *policy.Node) error {
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
			d.Headers[name] = append(d.Headers[name], v.Text)
		}
	}
	return nil
}
