package replay

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Fields lists what a policy reads of a request.
func Fields(p *policy.Policy) []string {
	need := map[string]bool{}
	for i := range p.Exempt {
		matchFields(need, &p.Exempt[i])
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Mode == policy.ModeOff {
			continue
		}
		matchFields(need, &r.Match)
		for j := range r.Exempt {
			matchFields(need, &r.Exempt[j])
		}
		keyFields(need, r.Key)
		costFields(need, &r.Cost)
		for j := range r.Costs {
			matchFields(need, &r.Costs[j].Match)
			costFields(need, &r.Costs[j].Cost)
		}
	}
	return slices.Sorted(maps.Keys(need))
}

func costFields(need map[string]bool, c *policy.Cost) {
	if c.Header != "" {
		need[accesslog.HeaderField(c.Header)] = true
	}
	if c.Query != "" {
		queryField(need)
	}
}

func queryField(need map[string]bool) {
	need[accesslog.FieldPath], need[accesslog.FieldQuery] = true, true
}

func matchFields(need map[string]bool, m *policy.Match) {
	for field, used := range map[string]bool{
		accesslog.FieldHost: len(m.Hosts) > 0, accesslog.FieldMethod: len(m.Methods) > 0,
		accesslog.FieldPath: len(m.Paths) > 0, accesslog.FieldClientIP: len(m.ClientIPs) > 0,
	} {
		if used {
			need[field] = true
		}
	}
	for i := range m.Headers {
		need[accesslog.HeaderField(m.Headers[i].Name)] = true
	}
}

func keyFields(need map[string]bool, key []policy.KeyPart) {
	for i := range key {
		switch k := &key[i]; k.Kind {
		case policy.KeyPath:
			need[accesslog.FieldPath] = true
		case policy.KeyQuery:
			queryField(need)
		case policy.KeyCookie:
			need[accesslog.HeaderField("cookie")] = true
		case policy.KeyJWT:
			need[accesslog.JWTField(k.Name, k.Path)] = true
		case policy.KeyProperty:
			need[accesslog.PropertyField(k.Path)] = true
		case policy.KeyFirstOf:
			keyFields(need, k.Of)
		default: // a header, or what a log calls as a policy does
			if name := k.Header(); name != "" {
				need[accesslog.HeaderField(name)] = true
			} else {
				need[k.Label()] = true
			}
		}
	}
}

const jwtNamespace = "envoy.filters.http.jwt_authn"

// request is a line as the filter sees it.
func request(r *accesslog.Request) *sim.Request {
	s := &sim.Request{Method: r.Method, Host: r.Host, Path: r.Path, ClientIP: r.ClientIP, Route: r.Route, Headers: r.Headers}
	for _, v := range r.Values {
		if path, ok := strings.CutPrefix(v[0], "property:"); ok {
			if s.Properties == nil {
				s.Properties = map[string][]byte{}
			}
			s.Properties[path] = []byte(v[1])
			continue
		}
		s.Metadata = addClaim(s.Metadata, strings.Split(strings.TrimPrefix(v[0], "jwt:"), ":"), v[1])
	}
	return s
}

// addClaim adds a claim by the segments of its path, of which the first is the
// provider.
func addClaim(to map[string]*structpb.Struct, path []string, value string) map[string]*structpb.Struct {
	if to == nil {
		to = map[string]*structpb.Struct{jwtNamespace: {Fields: map[string]*structpb.Value{}}}
	}
	at := to[jwtNamespace]
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
