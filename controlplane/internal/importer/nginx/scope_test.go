package nginx

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// scoped are the names of the rules of a configuration with the requests that they are for. Each zone counts by address
// at a rate of its own.
func scoped(t *testing.T, servers string) (list []string) {
	t.Helper()
	text := ""
	for _, name := range []string{"s", "a", "d", "w"} {
		text += "limit_req_zone $remote_addr zone=" + name + ":1m rate=1r/s;\n"
	}
	d := draft.New("nginx", "nginx.conf", policy.ScopeProxy)
	require.NoError(t, Read(d, []source.File{{Name: "nginx.conf", Text: []byte(text + servers)}}, nil))
	made, err := d.Finish()
	require.NoError(t, err)
	_, rules, _ := strings.Cut(string(made.Policy), "rules:\n")
	for _, r := range strings.Split(rules, "  - name: ")[1:] {
		requests, _, _ := strings.Cut(r, "\n    key: ")
		// Rules of one limit have one counter, with the name of the zone, which is a letter.
		requests = strings.Replace(requests, "\n    counter: "+requests[:1], "", 1)
		if strings.Contains(r, `mode: "off"`) {
			requests += " is off"
		}
		list = append(list, strings.Join(strings.Fields(requests), " "))
	}
	return list
}

// The example of scope.plans: /bx and /ax have the limits of the server, by the expression's rule, and /b1 has them by
// the server's own.
func TestEachRequestHasTheLimitsOfOneScope(t *testing.T) {
	require.Equal(t, []string{
		"s match: {hosts: [a.example]} exempt: - {paths: [/a*, ~.*x]}",
		"a match: {hosts: [a.example], paths: [/a*]} exempt: - {paths: [~.*x]}",
		"s-2 match: {hosts: [a.example], paths: [~.*x]}",
	}, scoped(t, `
server { server_name www.example; }
server {
  server_name a.example;
  limit_req zone=s;
  location /a { limit_req zone=a; }
  location ~ x$ { }
  location /b { }
}`))
}

// A location with the limits of the server needs a rule if it wins over one with other limits: = /bx does not.
func TestAWinnerWithoutRulesOfItsOwn(t *testing.T) {
	require.Equal(t, []string{
		"s exempt: - {paths: [/a*, ~.*x]}", "a match: {paths: [/a*]} exempt: - {paths: [~.*x]}", "s-2 match: {paths: [~.*x]}",
	}, scoped(t, `
server { limit_req zone=s; location /a { limit_req zone=a; } location ~ x$ { } location = /bx { } }`))
}

// The example of readServers: the default server has a host of the other one's, and those that nobody names.
func TestEachHostHasOneServer(t *testing.T) {
	require.Equal(t, []string{
		"d exempt: - {hosts: [a.example, '*.example']}",
		"d-2 match: {hosts: [a.example]}",
		"w match: {hosts: ['*.example']} exempt: - {hosts: [a.example]}",
	}, scoped(t, `
server { server_name a.example b.test; limit_req zone=d; }
server { server_name *.example; limit_req zone=w; }`))
}

// A policy has hosts that are IPv6 addresses, in brackets.
func TestAServerOfAnAddress(t *testing.T) {
	require.Equal(t, []string{"a exempt: - {hosts: ['[::1]']}", "s match: {hosts: ['[::1]']}"}, scoped(t, `
server { limit_req zone=a; } server { server_name [::1]; limit_req zone=s; }`))
}

// An outer scope has no request left if a location has all of them.
func TestALocationOfAllRequests(t *testing.T) {
	require.Equal(t, []string{"a exempt: - {paths: [/b]}"}, scoped(t, `
server { limit_req zone=s; location / { limit_req zone=a; } location = /b { return 204; } }`))
}

// nginx tries a prefix and an expression in one order, however they are written. So it makes no difference to their
// rules, also where no exemption can say the expression: it holds below /s again, by /s/t.
func TestOrderOfALocationAndAnExpression(t *testing.T) {
	const below = "location ^~ /s { } location /s/t { }"
	const prefix, expression = "location /c { limit_req zone=a; }", "location ~ x$ { limit_req zone=s; }"
	want := []string{
		"a match: {paths: [/c*]} is off",
		"s match: {paths: [~.*x]} is off",
	}
	require.ElementsMatch(t, want, scoped(t, "server { "+below+prefix+expression+" }"))
	require.ElementsMatch(t, want, scoped(t, "server { "+below+expression+prefix+" }"))
}

// An expression that holds below a prefix with ^~ again is off for one reason, however many prefixes are so. Else a
// file of a thousand locations has tens of thousands of reasons for each expression.
func TestOneReasonForAHoleInPrefixes(t *testing.T) {
	text := "location ~ x$ { }"
	for i := range 20 {
		text += fmt.Sprintf("location ^~ /s%d { } location /s%d/t { } location /s%d/u { }", i, i, i)
	}
	block, err := nginxconf.Parse(nginxconf.File{Name: "nginx.conf", Text: []byte(text)}, nil)
	require.NoError(t, err)
	n := newReader(draft.New("nginx", "nginx.conf", policy.ScopeProxy))
	scopes := n.readLocations(n.locationsIn(block), nil, nil)
	require.Equal(t, "location ~ x$", scopes[0].label)
	require.Equal(t, []request.WhyOff{
		"No match can select its requests: it holds for the location /s0/t, but not for the rest of ^~ /s0.",
	}, scopes[0].selection.WhyOff())
}

// No request comes to an expression beside a location ^~ / without a longer one: nginx does not try it.
func TestALocationWithoutRequests(t *testing.T) {
	require.Equal(t, []string{"a"}, scoped(t, `
server { location ^~ / { limit_req zone=a; } location ~ x$ { limit_req zone=s; location ~ y { limit_req zone=d; } } }`))
}

// A longer location without ^~ is a hole in a location ^~ / too: nginx tries the expression for /s/tx.
func TestAHoleInALocationOfAllRequests(t *testing.T) {
	require.ElementsMatch(t, []string{
		"a exempt: - {paths: [/s/t*]}",
		"d match: {paths: [/s/t*]} is off",
		"s match: {paths: [~.*x]} is off",
	}, scoped(t, `
server {
  location ^~ / { limit_req zone=a; }
  location /s/t { limit_req zone=d; }
  location ~ x$ { limit_req zone=s; }
}`))
}

// nginx gives /ab to b$ or = /ab in the location / before it tries those beside it. So no match has the requests of the
// expression beside the location.
func TestLocationsBeforeTheExpressionsAroundThem(t *testing.T) {
	for within, rules := range map[string][]string{
		"~ b$":  {"a match: {paths: [~.*a.*]} is off", "d match: {paths: [~.*b]} is off"},
		"= /ab": {"a match: {paths: [~.*a.*]} is off", "d match: {paths: [/ab]} is off"},
		"= /b":  {"a match: {paths: [~.*a.*]}", "d match: {paths: [/b]} exempt: - {paths: [~.*a.*]}"},
	} {
		require.ElementsMatch(t, rules, scoped(t, `
server { location ~ a { limit_req zone=a; } location / { location `+within+` { limit_req zone=d; } } }`), within)
	}
}

// A path of a policy has no question mark, and nginx compares one that the client wrote as %3F.
func TestALocationWithAQuestionMark(t *testing.T) {
	require.Equal(t, []string{
		"s exempt: - {paths: [/b*]} is off",
		"a is off",
		"d match: {paths: [/b*]}",
	}, scoped(t, `
server { limit_req zone=s; location /a?b { limit_req zone=a; } location /b { limit_req zone=d; } }`))
}

// The size of a zone is in bytes, KiB or MiB. The default of a policy has room for as many keys as a zone of 8 MiB.
func TestRoomOfAZone(t *testing.T) {
	for size, keys := range map[string]uint64{
		"8m": 0, "100m": 100 * 8192, "102400K": 100 * 8192, "104857600": 100 * 8192, "999999m": policy.MaxCapacity, "x": 0,
	} {
		require.Equal(t, keys, capacityOf(size), size)
	}
}
