package replay

import (
	"encoding/binary"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// fields lists the fields of the log that a policy needs, as it reads them of a request, and those
// that it wants of answers.
func fields(p *policy.Policy) (needed, wanted []string) {
	need := needs{}
	for i := range p.Exempt {
		need.match(&p.Exempt[i])
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Mode == policy.ModeOff {
			continue
		}
		need.match(&r.Match)
		for j := range r.Exempt {
			need.match(&r.Exempt[j])
		}
		need.key(r.Key)
		for j := range r.Limits {
			if from := r.Limits[j].Requested; from != nil {
				need.key([]policy.KeyPart{from.Part})
			}
		}
		need.cost(&r.Cost)
		for j := range r.Costs {
			need.match(&r.Costs[j].Match)
			need.cost(&r.Costs[j].Cost)
		}
		if r.Holds() {
			wanted = append(wanted, accesslog.FieldTook)
		}
		if r.Settle != nil && bytesFields[r.Settle.To] != "" {
			wanted = append(wanted, bytesFields[r.Settle.To])
		}
	}
	return slices.Sorted(maps.Keys(need)), wanted
}

var bytesFields = map[policy.Settled]string{
	policy.SettleRequestBytes: accesslog.FieldReceived, policy.SettleResponseBytes: accesslog.FieldSent,
}

type needs map[string]bool

// add adds a field if a policy uses it.
func (f needs) add(used bool, field string) {
	if used {
		f[field] = true
	}
}

func (f needs) cost(c *policy.Cost) {
	f.add(c.Header != "", accesslog.HeaderField(c.Header))
	f.add(c.Query != "", accesslog.FieldQuery)
	f.add(c.RequestBytes != nil, accesslog.HeaderField("content-length"))
}

func (f needs) match(m *policy.Match) {
	f.add(len(m.Hosts) > 0, accesslog.FieldHost)
	f.add(len(m.Methods) > 0, accesslog.FieldMethod)
	f.add(len(m.Paths) > 0, accesslog.FieldPath)
	f.add(len(m.ClientIPs) > 0, accesslog.FieldClientIP)
	for i := range m.Headers {
		f.add(true, accesslog.HeaderField(m.Headers[i].Name))
	}
}

// keyFields are the fields of parts of keys without a name.
var keyFields = map[policy.KeyKind]string{
	policy.KeyClientIP: accesslog.FieldClientIP,
	policy.KeyHost:     accesslog.FieldHost,
	policy.KeyMethod:   accesslog.FieldMethod,
	policy.KeyPath:     accesslog.FieldPath,
	policy.KeyQuery:    accesslog.FieldQuery,
	policy.KeyRoute:    accesslog.FieldRoute,
	policy.KeyCookie:   accesslog.HeaderField("cookie"),
}

func (f needs) key(key []policy.KeyPart) {
	for i := range key {
		switch k := &key[i]; k.Kind {
		case policy.KeyJWT:
			f.add(true, accesslog.JWTField(k.Name, k.Path))
		case policy.KeyProperty:
			f.add(true, accesslog.PropertyField(k.Path))
		case policy.KeyFirstOf:
			f.key(k.Of)
		default:
			if name := k.Header(); name != "" {
				f.add(true, accesslog.HeaderField(name))
			} else {
				f.add(true, keyFields[k.Kind])
			}
		}
	}
}

// request is a line as the filter sees it.
func request(r *accesslog.Request) *sim.Request {
	s := &sim.Request{
		Method: r.Method, Host: r.Host, Path: r.Path, ClientIP: r.ClientIP, Route: r.Route, Headers: r.Headers,
		Properties: map[string][]byte{}, HasBody: policy.MayHaveBody(r.Method), Received: func() int64 { return r.Received },
	}
	for _, p := range r.Properties {
		s.Properties[p[0]] = []byte(p[1])
	}
	for _, c := range r.Claims {
		s.Metadata = addClaim(s.Metadata, c.Path, c.Text)
	}
	if r.Sent != 0 {
		s.Properties["response.size"] = binary.LittleEndian.AppendUint64(nil, uint64(r.Sent))
	}
	return s
}

// answerOf is the answer that a line has. It is nil for Envoy's status 0, which says that there was
// none. In a log without statuses it is 200.
func answerOf(line *accesslog.Request, log *accesslog.Log) *sim.Response {
	switch {
	case line.Status > 100:
		return &sim.Response{Status: line.Status}
	case log.Has(accesslog.FieldStatus):
		return nil
	}
	return &sim.Response{Status: 200}
}

// addClaim adds a claim by the segments of its path. The first segment is the provider.
func addClaim(to map[string]*structpb.Struct, path []string, value string) map[string]*structpb.Struct {
	if to == nil {
		to = map[string]*structpb.Struct{accesslog.JWTNamespace: {Fields: map[string]*structpb.Value{}}}
	}
	at := to[accesslog.JWTNamespace]
	for _, name := range path[:len(path)-1] {
		inner := at.Fields[name].GetStructValue()
		if inner == nil {
			inner = &structpb.Struct{Fields: map[string]*structpb.Value{}}
			at.Fields[name] = structpb.NewStructValue(inner)
		}
		at = inner
	}
	at.Fields[path[len(path)-1]] = structpb.NewStringValue(value)
	return to
}
