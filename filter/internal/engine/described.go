package engine

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Described is a request that is told instead of seen. Empty fields are what
// the request does not have.
type Described struct {
	Method, Host, Path string
	Headers            map[string][]string // by name in lower case
	ClientAddress      string              // with or without port
	Attributes         map[string]string   // by path, its segments joined by dots; see Host.Attribute
}

// told is the Host that a described request comes from: the proxy's clock and
// counters, and nothing that is written to them gets any further than here.
type told struct {
	*Described
	proxy   Host
	written map[string]kept
}

type kept struct {
	value []byte
	cas   uint32
}

func tell(d *Described, proxy Host) *told {
	return &told{Described: d, proxy: proxy, written: map[string]kept{}}
}

func (t *told) Now() int64 { return t.proxy.Now() }

func (t *told) Header(name string) (string, bool) {
	switch name {
	case ":method":
		return t.Method, t.Method != ""
	case ":authority":
		return t.Host, t.Host != ""
	case ":path":
		return t.Path, t.Path != ""
	}
	if values := t.Headers[name]; len(values) > 0 {
		return values[0], true
	}
	return "", false
}

func (t *told) JoinedHeader(name string) (string, bool) {
	if strings.HasPrefix(name, ":") {
		return t.Header(name)
	}
	values, present := t.Headers[name]
	return strings.Join(values, ","), present
}

func (t *told) AppendHeader(values []string, name string) []string {
	return append(values, t.Headers[name]...)
}

func (t *told) ClientAddress() (string, bool) {
	return t.Described.ClientAddress, t.Described.ClientAddress != ""
}

// Counted is the real one: nothing here is decided by it.
func (t *told) Counted(rule, metric string) uint64 { return t.proxy.Counted(rule, metric) }

func (t *told) Attribute(path string) (string, bool) {
	value, present := t.Attributes[strings.ReplaceAll(path, "\x00", ".")]
	return value, present
}

// Get gives out copies: the engine writes into what it gets.
func (t *told) Get(key []byte) ([]byte, uint32, state.Status) {
	if k, ours := t.written[string(key)]; ours {
		return append([]byte(nil), k.value...), k.cas, state.OK
	}
	value, cas, status := t.proxy.Get(key)
	return append([]byte(nil), value...), cas, status
}

// Set has the rules of Envoy's shared data, see state.Store.
func (t *told) Set(key, value []byte, cas uint32) state.Status {
	_, have, status := t.Get(key)
	switch {
	case status == state.Failed:
		return state.Failed
	case status == state.OK && cas != 0 && cas != have:
		return state.Mismatch
	}
	t.written[string(key)] = kept{append([]byte(nil), value...), have + 1}
	return state.OK
}
