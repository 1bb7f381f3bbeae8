package engine

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// What a rule of each kind asks of the proxy, call by call: each value once,
// and none that an earlier answer has made needless.
func TestReadsOfEachRule(t *testing.T) {
	const (
		first, after = `"limits":[]`, `{"name":"second","limits":[],`
		headers      = `{"name":"r","limits":[],"match":{"headers":{"h":"a"}}},` + after + `"match":{"headers":{"h":"b"}}}`
	)
	many := func(n int, match string) string {
		var rules []string
		for i := range n {
			rules = append(rules, fmt.Sprintf(`{"name":"r%d","limits":[],"match":{%s}}`, i, strings.ReplaceAll(match, "#", strconv.Itoa(i))))
		}
		return strings.Join(rules, ",")
	}
	mixed := many(20, `"paths":["/p#"]`) + `,{"name":"other","limits":[],"match":{"paths":["/other"],"hosts":["a"]}}`
	for _, c := range []struct {
		rules   string
		headers []string
		want    []string
	}{
		{`{"name":"r",` + first + `}`, nil, nil},
		{`{"name":"r","mode":"off","key":["host"],` + first + `}`, nil, nil},
		{`{"name":"r","key":[{"header":"a"},{"header":"A"}],` + first + `}`, nil, []string{"header a"}},
		{`{"name":"r","key":["client_ip",{"client_ip":{"v4_prefix":8}}],"match":{"client_ips":["192.0.2.7"]},` + first + `}`, nil, []string{"client"}},
		{`{"name":"r","key":[{"query":"a"},{"query":"b"},"path",{"path":{"segment":1}}],"cost":{"query":"c"},"missing_key":"share","match":{"paths":["*"]},` + first + `}`, nil, []string{"header :path"}},
		{`{"name":"r","key":["host","method","route"],"match":{"methods":["GET"],"hosts":["*.example.com"]},` + first + `}`, nil, []string{"header :method", "header :authority", "attribute xds.route_name"}},
		{`{"name":"r","key":[{"cookie":"a"},{"cookie":"b"}],` + first + `}`, []string{"cookie", "a=1; b=2"}, []string{"joined cookie"}},
		{`{"name":"r","key":[{"cookie":"a"},{"cookie":"b"}],` + first + `}`, []string{"cookie", "a=1,3; b=2"}, []string{"joined cookie", "header cookie"}},
		{`{"name":"r","key":[{"jwt":{"provider":"p","claim":"a"}},{"jwt":{"provider":"q","claim":["b","c"]}}],"missing_key":"share",` + first + `}`, nil, []string{"attribute metadata"}},
		{`{"name":"r","key":[{"property":["source","port"]},{"property":["source","port"]}],"missing_key":"share",` + first + `}`, nil, []string{"attribute source.port"}},
		{`{"name":"r","key":[{"first_of":[{"header":"a"},{"header":"b"},"client_ip"]}],` + first + `}`, []string{"b", "1"}, []string{"header a", "header b"}},
		{`{"name":"r","key":[{"header":"a"}],"cost":{"header":"c"},` + first + `}`, nil, []string{"header a"}},
		// Only a comma in a header costs a second call, and only one that is repeated a third.
		{headers, nil, []string{"joined h"}},
		{headers, []string{"h", " x "}, []string{"joined h"}},
		{headers, []string{"h", "x,y"}, []string{"joined h", "header h"}},
		{headers, []string{"h", "x, y"}, []string{"joined h", "header h"}},
		{headers, []string{"h", "x", "h", "y"}, []string{"joined h", "header h", "headers"}},
		{headers, []string{"h", "x ", "h", " y"}, []string{"joined h", "header h", "headers"}},
		// The cheapest predicate first, and the key only where all hold.
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"methods":["POST"],"hosts":["a"],"paths":["/a"]},` + first + `}`, nil, []string{"header :method"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"hosts":["a"],"paths":["/a"]},` + first + `}`, nil, []string{"header :authority"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"],"paths":["/a"]},` + first + `}`, nil, []string{"header :path"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"},"client_ips":["10.0.0.0/8"]},` + first + `}`, nil, []string{"client"}},
		{`{"name":"r","key":[{"header":"a"}],"match":{"headers":{"h":"*"}},` + first + `}`, nil, []string{"joined h"}},
		// What an earlier rule has read is asked before what would have to be.
		{`{"name":"r","match":{"paths":["/a"]},` + first + `},` + after + `"match":{"methods":["GET"],"paths":["/b"]}}`, nil, []string{"header :path"}},
		{`{"name":"r","match":{"headers":{"h":"!"}},` + first + `},` + after + `"match":{"hosts":["api.example.com"],"headers":{"h":"*"}}}`, nil, []string{"joined h"}},
		// Exemptions are asked of what matches, before its key is read.
		{`{"name":"r","match":{"paths":["/a"]},"exempt":[{"methods":["GET"]}],"key":[{"header":"a"}],` + first + `}`, nil, []string{"header :path"}},
		{`{"name":"r","exempt":[{"methods":["POST"]},{"hosts":["api.example.com"]},{"headers":{"h":"*"}}],"key":[{"header":"a"}],` + first + `}`, nil, []string{"header :method", "header :authority"}},
		{`{"name":"r","exempt":[{"client_ips":["10.0.0.0/8"],"headers":{"h":"*"}}],"key":["client_ip"],` + first + `}`, nil, []string{"client"}},
		// A limit from the request is read where its rule matches.
		{after + `"match":{"paths":["/a"]}},{"name":"r","match":{"paths":["/r"]},"limits":[` + fromClaim + `]}`, nil, []string{"header :path"}},
		// Below a few rules an index would only read more than the rules need.
		{many(7, `"methods":["POST"],"paths":["/p#"],"hosts":["h#"]`), []string{":path", "/p1"}, []string{"header :method"}},
		{many(20, `"paths":["/p#"],"hosts":["h#"]`), []string{":path", "/p1"}, []string{"header :authority"}}, // nothing is left
		{mixed, []string{":path", "/none"}, []string{"header :path"}},
		{mixed, []string{":path", "/p1"}, []string{"header :path"}},
		{mixed, []string{":path", "/other"}, []string{"header :path", "header :authority"}},
	} {
		p := hosttest.New()
		p.With(c.headers...)
		e := compileJSON(t, p, c.rules)
		for range 2 { // nothing is kept from one request to the next
			p.Calls = nil
			e.Decide()
			require.Equal(t, c.want, p.Calls, c.rules)
		}
	}
}
