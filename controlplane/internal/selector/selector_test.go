package selector

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASelectorMatchesProxies(t *testing.T) {
	for _, tc := range []struct {
		pattern, text string
		want          bool
	}{
		{"edge-1", "edge-1", true},
		{"edge-1", "edge-12", false},
		{"edge-*", "edge-", true},
		{"edge-*", "edge-eu.7", true},
		{"edge-*", "ledge-1", false},
		{"*-eu-*", "edge-eu-1", true},
		{"*-eu-*", "edge-us-1", false},
		{"a*b*c", "abbbc", true},
		{"a*b*c", "abbb", false},
		{"*", "", true},
		{"**", "x", true},
	} {
		require.Equal(t, tc.want, match(tc.pattern, tc.text), "%s of %s", tc.pattern, tc.text)
	}
	s := Selector{Node: "edge-*", Cluster: "front", SAN: "spiffe://corp/*", Metadata: map[string]string{"env": "prod"}}
	whole := Proxy{
		Node: "edge-1", Cluster: "front", SAN: "spiffe://corp/edge", Metadata: map[string]string{"env": "prod", "x": "y"},
	}
	require.True(t, s.Match(&whole))
	for name, change := range map[string]func(*Proxy){
		"node":       func(p *Proxy) { p.Node = "core-1" },
		"cluster":    func(p *Proxy) { p.Cluster = "" },
		"san":        func(p *Proxy) { p.SAN = "" },
		"metadata":   func(p *Proxy) { p.Metadata = map[string]string{"env": "staging"} },
		"none of it": func(p *Proxy) { p.Metadata = nil },
	} {
		p := whole
		change(&p)
		require.False(t, s.Match(&p), name)
	}
}

func TestAProxyThatBothSelect(t *testing.T) {
	for _, tc := range []struct {
		a, b Selector
		want string // "" = none
	}{
		{Selector{Node: "edge-*"}, Selector{Node: "core-*"}, ""},
		{Selector{Node: "edge-*"}, Selector{Node: "edge-*"}, `node "edge-1"`},
		{Selector{Node: "edge-*"}, Selector{Node: "*-eu"}, `node "edge-eu"`},
		{Selector{Node: "edge-7"}, Selector{Node: "*7"}, `node "edge-7"`},
		{Selector{Node: "edge-*"}, Selector{Cluster: "front"}, `node "edge-1", cluster "front"`},
		{Selector{Node: "edge-*", Cluster: "a"}, Selector{Node: "edge-*", Cluster: "b"}, ""},
		{Selector{Metadata: map[string]string{"env": "prod"}}, Selector{Metadata: map[string]string{"env": "staging"}}, ""},
		{
			Selector{Metadata: map[string]string{"env": "prod"}}, Selector{Metadata: map[string]string{"tier": "*"}},
			`metadata env "prod", metadata tier "1"`,
		},
		{Selector{SAN: "spiffe://a/*"}, Selector{SAN: "spiffe://b/*"}, ""},
	} {
		for _, pair := range [][2]Selector{{tc.a, tc.b}, {tc.b, tc.a}} {
			example, ok := Both(&pair[0], &pair[1])
			require.Equal(t, tc.want != "", ok, "%v", tc)
			require.Equal(t, tc.want, example)
		}
	}
}

// The example fits both patterns, and where there is none no short text does.
func TestMeetAgainstEveryShortText(t *testing.T) {
	texts := []string{""}
	for at := 0; len(texts) < 1000; at++ {
		for _, c := range "ab1" {
			texts = append(texts, texts[at]+string(c))
		}
	}
	pattern := func() string {
		p := make([]byte, rand.IntN(5))
		for i := range p {
			p[i] = "ab*"[rand.IntN(3)]
		}
		return string(p)
	}
	for range 3000 {
		a, b := pattern(), pattern()
		text, ok := meet(a, b)
		if ok {
			require.True(t, match(a, text) && match(b, text), "%q is not of %q and %q", text, a, b)
			continue
		}
		for _, text := range texts {
			require.False(t, match(a, text) && match(b, text), "%q is of %q and %q", text, a, b)
		}
	}
}
