// Package hosttest is a proxy for tests of the engine and the packages around it,
// and policies and requests by chance. It must not import the engine, whose own
// tests import it.
package hosttest

import (
	"encoding/json"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Proxy is an engine.Host of one request at a time, over a store with the rules
// of Envoy's shared data.
type Proxy struct {
	Mute       bool // AppendHeader returns nothing
	Clock      int64
	Headers    map[string][]string
	Client     string
	Bodyless   bool              // the headers end the request
	Attributes map[string]string // by path, its segments joined by dots
	Store      map[string]Cell
	CAS        uint32
	Calls      []string
	Fail       string // "get" or "set"
	Steal      int    // so many writes find that somebody else wrote first
	After      func(key string)

	Counters map[string]uint64 // of all workers, by "RULE METRIC"
}

// Counted returns what Counters says, by "RULE METRIC".
func (p *Proxy) Counted(_, rule, metric string) uint64 { return p.Counters[rule+" "+metric] }

// Cell is one value of the store.
type Cell struct {
	Value []byte
	CAS   uint32
}

func (p *Proxy) Now() int64 { return p.Clock }

// Monotonic follows Clock.
func (p *Proxy) Monotonic() int64 { return p.Clock }

func (p *Proxy) Header(name string) (string, bool) {
	p.Calls = append(p.Calls, "header "+name)
	if v := p.Headers[name]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}

func (p *Proxy) JoinedHeader(name string) (string, bool) {
	p.Calls = append(p.Calls, "joined "+name)
	v, ok := p.Headers[name]
	return strings.Join(v, ","), ok
}

func (p *Proxy) AppendHeader(values []string, name string) []string {
	p.Calls = append(p.Calls, "headers")
	if p.Mute {
		return values
	}
	return append(values, p.Headers[name]...)
}

// HasBody asks nobody: the proxy says it with the headers.
func (p *Proxy) HasBody() bool { return !p.Bodyless }

func (p *Proxy) ClientAddress() (string, bool) {
	p.Calls = append(p.Calls, "client")
	return p.Client, p.Client != ""
}

func (p *Proxy) Attribute(path string) (string, bool) {
	dotted := strings.ReplaceAll(path, "\x00", ".")
	p.Calls = append(p.Calls, "attribute "+dotted)
	v, ok := p.Attributes[dotted]
	return v, ok
}

func (p *Proxy) Get(key []byte) ([]byte, uint32, state.Status) {
	p.Calls = append(p.Calls, "get")
	if p.Fail == "get" {
		return nil, 0, state.Failed
	}
	c, ok := p.Store[string(key)]
	if !ok {
		return nil, 0, state.NotFound
	}
	return append([]byte(nil), c.Value...), c.CAS, state.OK
}

func (p *Proxy) Set(key, value []byte, cas uint32) state.Status {
	p.Calls = append(p.Calls, "set")
	if p.Fail == "set" {
		return state.Failed
	}
	if strings.HasPrefix(string(key), "sl/") && p.Steal > 0 {
		p.Steal--
		return state.Mismatch
	}
	c, ok := p.Store[string(key)]
	if ok && cas != 0 && cas != c.CAS {
		return state.Mismatch
	}
	p.CAS++
	p.Store[string(key)] = Cell{append([]byte(nil), value...), p.CAS}
	if p.After != nil {
		p.After(string(key))
	}
	return state.OK
}

// New returns a proxy with an empty store that is at a GET of "/".
func New() *Proxy {
	p := &Proxy{Store: map[string]Cell{}, Client: "192.0.2.7:4711"}
	p.With()
	return p
}

// With moves on to a request that has these headers beside the defaults.
func (p *Proxy) With(pairs ...string) {
	p.Headers = map[string][]string{":method": {"GET"}, ":path": {"/"}, ":authority": {"api.example.com"}}
	for i := 0; i < len(pairs); i += 2 {
		p.Headers[pairs[i]] = append(p.Headers[pairs[i]], pairs[i+1])
		if strings.HasPrefix(pairs[i], ":") {
			p.Headers[pairs[i]] = []string{pairs[i+1]}
		}
	}
}

// Pages are the counters in a store, without the directory and the seed.
func Pages(store map[string]Cell) map[string]Cell {
	out := map[string]Cell{}
	for k, c := range store {
		if strings.HasPrefix(k, "sl/") {
			out[k] = c
		}
	}
	return out
}

// Policy reads a policy of these rules.
func Policy(t testing.TB, rules string) *policy.Policy {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(`{"version":1,"rules":[` + rules + `]}`))
	require.NoError(t, err)
	p, problems := policy.Read(doc)
	require.Empty(t, problems)
	return p
}

// Metadata returns dynamic metadata as the proxy writes it.
func Metadata(t testing.TB, text string) string {
	t.Helper()
	var namespaces map[string]map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &namespaces))
	m := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	for name, fields := range namespaces {
		s, err := structpb.NewStruct(fields)
		require.NoError(t, err)
		m.FilterMetadata[name] = s
	}
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return string(b)
}
