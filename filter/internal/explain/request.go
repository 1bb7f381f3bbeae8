package explain

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Request is a request that somebody describes instead of sending it. It lacks what is empty
// here.
type Request struct {
	Method, Host, Path string
	Headers            map[string][]string // by name in lower case
	ClientAddress      string              // with or without port
	Attributes         map[string]string   // by path, its segments joined by dots; see request.Source
	Keys               bool                // explain the key of every rule, with the values of credentials
}

// HasBody goes by the method: the description says no more of a body without a length.
func (r *Request) HasBody() bool { return policy.MayHaveBody(r.Method) }

// bodyAssumed returns what the rule's cost supposes of the body, "" if it depends on no body or
// the description gives its length.
func (r *Request) bodyAssumed(p *policy.Rule) string {
	byLength := p.Cost.RequestBytes != nil
	for i := range p.Costs {
		byLength = byLength || p.Costs[i].Cost.RequestBytes != nil
	}
	switch {
	case !byLength || len(r.Headers["content-length"]) > 0:
		return ""
	case r.HasBody():
		return "a body of unknown length"
	}
	return "no body"
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
		err := r.set(&doc.Fields[i])
		if err != nil {
			return nil, err
		}
	}
	if _, err := netip.ParseAddr(r.ClientAddress); err != nil && r.ClientAddress != "" {
		return nil, errors.New("client_ip: is no IP address")
	}
	if !strings.HasPrefix(r.Path, "/") {
		return nil, errors.New("path: must start with /")
	}
	return r, nil
}

// set takes one field of a description.
func (r *Request) set(f *policy.Field) error {
	switch f.Name {
	case "method":
		return setText(&r.Method, f)
	case "host":
		return setText(&r.Host, f)
	case "path":
		return setText(&r.Path, f)
	case "client_ip":
		return setText(&r.ClientAddress, f)
	case "route":
		var route string
		err := setText(&route, f)
		r.Attributes["xds.route_name"] = route
		return err
	case "headers":
		return eachField(f, "names to values", r.addHeader)
	case "properties":
		return eachField(f, "paths to texts", r.addAttribute)
	case "keys":
		if f.Value.Kind != policy.Bool {
			return errors.New("keys: must be true or false")
		}
		r.Keys = f.Value.Text == "true"
		return nil
	}
	return errors.New(strconv.Quote(f.Name) +
		" is none of method, host, path, headers, client_ip, route, properties, keys")
}

func setText(to *string, f *policy.Field) error {
	if f.Value.Kind != policy.String {
		return errors.New(f.Name + ": must be text")
	}
	*to = f.Value.Text
	return nil
}

// eachField calls add for each field of an object.
func eachField(object *policy.Field, what string, add func(*policy.Field) error) error {
	if object.Value.Kind != policy.Object {
		return errors.New(object.Name + ": must be an object from " + what)
	}
	for i := range object.Value.Fields {
		f := &object.Value.Fields[i]
		if err := add(f); err != nil {
			return errors.New(object.Name + ": " + strconv.Quote(f.Name) + err.Error())
		}
	}
	return nil
}

func (r *Request) addAttribute(f *policy.Field) error {
	if f.Value.Kind != policy.String {
		return errors.New(" must be text")
	}
	r.Attributes[f.Name] = f.Value.Text
	return nil
}

func (r *Request) addHeader(f *policy.Field) error {
	values := []*policy.Node{f.Value}
	if f.Value.Kind == policy.List {
		values = f.Value.Items
	}
	name := strings.ToLower(f.Name)
	if name == "" || name[0] == ':' {
		return errors.New(" is no header: give method, host and path beside headers")
	}
	for _, v := range values {
		if v.Kind != policy.String {
			return errors.New(" must be text or a list of texts")
		}
		r.Headers[name] = append(r.Headers[name], v.Text)
	}
	return nil
}
