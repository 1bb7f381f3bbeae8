package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/state"
)

// steady is a proxy whose answers cost no memory, as the arena's do not.
type steady struct {
	*proxy
	buffer []byte
	values map[string]string // attributes by path
}

func (s *steady) Attribute(path string) (string, bool) {
	v, ok := s.values[path]
	return v, ok
}

func (s *steady) Header(name string) (string, bool) {
	v := s.headers[name]
	if len(v) == 0 {
		return "", false
	}
	return v[0], true
}

func (s *steady) JoinedHeader(name string) (string, bool) { return s.Header(name) }

func (s *steady) ClientAddress() (string, bool) { return s.client, true }

func (s *steady) Get(key []byte) ([]byte, uint32, state.Status) {
	c, ok := s.store[string(key)]
	if !ok {
		return nil, 0, state.NotFound
	}
	s.buffer = append(s.buffer[:0], c.value...)
	return s.buffer, c.cas, state.OK
}

func (s *steady) Set(key, value []byte, cas uint32) state.Status {
	c, ok := s.store[string(key)]
	if !ok {
		return s.proxy.Set(key, value, cas)
	}
	copy(c.value, value)
	return state.OK
}

// Every algorithm decides, counts, denies and takes back without allocating.
func TestNoAlgorithmAllocates(t *testing.T) {
	for _, window := range []string{
		`"algorithm":"fixed_window"`, `"algorithm":"fixed_window","jitter":30`, `"algorithm":"fixed_window_per_key"`,
		`"algorithm":"fixed_window_per_key","elastic":true`, `"algorithm":"sliding_window_log"`,
		`"algorithm":"sliding_window_counter"`, `"algorithm":"token_bucket","burst":300`,
	} {
		for _, more := range []string{
			``, `,"mode":"shadow"`, `,"enforce_percent":40`, `,"count_denied":true`,
			`,"overrides":[{"key":["x"],"limits":[{"requests":9,"per":"1h",` + window + `}]},{"key":["~a.*"],"limits":[{"requests":400,"per":"1h",` + window + `}]}]`,
		} {
			if strings.Contains(window, "token_bucket") && strings.Contains(more, "count_denied") {
				continue
			}
			// The last rule denies some: then the first has checked and counts nothing.
			s := &quietProxy{proxy: newProxy(), cells: map[string]*cell{}}
			s.with("u", "alice")
			e := compileJSON(t, s, `{"name":"r","key":[{"header":"u"}],"limits":[{"requests":300,"per":"1h",`+window+`},"4000000000/1d"]`+more+`},
				{"name":"last","limits":["2/2s"],"algorithm":"fixed_window_per_key"}`)
			passed, denied := 0, 0
			decide := func() {
				if s.now += 700_000_000; e.Decide().Allowed {
					passed++
				} else {
					denied++
				}
			}
			for range 400 {
				decide()
			}
			require.Zero(t, testing.AllocsPerRun(400, decide), "%s%s", window, more)
			require.NotZero(t, passed)
			require.NotZero(t, denied)
			try := e.tries[0]
			require.Zero(t, testing.AllocsPerRun(100, func() {
				s.now += 100_000_000_000 // a token and more for each
				try.check(s.now)
				try.commit(s.now)
				require.True(t, try.counted || !try.allowed)
				try.refund(s.now)
			}), "taking back: %s%s", window, more)
			require.Zero(t, try.rule.metrics.NotRefunded)
		}
	}
}

// Garbage collection would stop a worker: what a request needs is there before
// it comes. Only the numbers in response headers are made for it.
func TestDecidingAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		allowed     bool
		most        float64
	}{
		{"allowed", `{"name":"r","key":[{"header":"u"},"host","method",{"path":{"segment":2}}],"limits":["4000000000/1h","4000000000/1d"],
			"match":{"hosts":["*.example.com"],"paths":["/v1/*"],"methods":["GET"],"headers":{"u":"al*"}},"cost":{"header":"c"}}`, true, 0},
		{"denied", `{"name":"r","key":[{"header":"u"}],"limits":["1/1h","4000000000/1d"]},{"name":"s","limits":["4000000000/1h"]}`, false, 1},
		{"missing key", `{"name":"r","key":[{"header":"none"}],"missing_key":"deny","limits":["1/1h"]}`, false, 0},
		{"client", `{"name":"r","key":[{"client_ip":{}}],"limits":["4000000000/1h"]}`, true, 1},
		{"all that is matched", `{"name":"r","limits":["4000000000/1h"],"match":{"client_ips":["10.0.0.0/8","192.0.2.0/24"],"headers":{"u":"~a.*"}},
			"exempt":[{"methods":["POST"]},{"paths":["/v2*","/v3"]},{"hosts":["a","*.b"]}]}`, true, 0},
		{"all that is text", `{"name":"r","key":[{"query":"q"},{"cookie":"c"},"route",{"jwt":{"provider":"p","claim":"sub"}},{"property":["request","protocol"]},
			{"first_of":[{"header":"none"},{"query":"q"}]}],"cost":{"query":"n"},"limits":["4000000000/1h"]}`, true, 0},
	} {
		s := &steady{proxy: newProxy()}
		s.with("u", "alice", ":path", "/v1/x/y?q=a&n=2", "c", "3", "cookie", "b=1; c=2")
		s.values = map[string]string{"xds\x00route_name": "main", "request\x00protocol": "HTTP/2", "metadata": metadata(t, `{"envoy.filters.http.jwt_authn":{"p":{"sub":"alice"}}}`)}
		e := compileJSON(t, s, c.rules)
		e.Decide()
		var (
			v      *Verdict
			fields []Field
		)
		decide := func() {
			v = e.Decide()
			fields = e.AppendFields(fields[:0], v)
		}
		decide()
		require.LessOrEqual(t, testing.AllocsPerRun(100, decide), c.most, c.name)
		require.Equal(t, c.allowed, v.Allowed, c.name)
	}
}
