package describe

import (
	"net/url"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// described reads flags.
func described(t *testing.T, args ...string) *Client {
	t.Helper()
	var c Client
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(flags)
	require.NoError(t, flags.Parse(args))
	return &c
}

// TestFlagsAndFormDescribeTheSame: a form has the fields of the flags, and its lists a value a line.
func TestFlagsAndFormDescribeTheSame(t *testing.T) {
	flags := described(t, "--method", "POST", "--host", "a.example", "--path", "/v1?x=1",
		"--header", "X-User-Id: alice", "--header", "x-user-id=bob", "--cookie", "a=1", "--cookie", "b=2",
		"--query", "tenant=o'neil & co", "--client-ip", "192.0.2.7")
	form := FromForm(url.Values{
		"method": {"POST"}, "host": {" a.example "}, "path": {"/v1?x=1"}, "header": {"X-User-Id: alice\r\n\r\nx-user-id=bob"},
		"cookie": {"a=1", "b=2"}, "query": {"tenant=o'neil & co\n"}, "client_ip": {"192.0.2.7"},
	})
	require.Equal(t, *flags, form)
	require.Equal(t, form, FromForm(form.Form()))
	r, err := form.Request()
	require.NoError(t, err)
	require.Equal(t, &simulate.Request{
		Method: "POST", Host: "a.example", Path: "/v1?x=1&tenant=o%27neil+%26+co", ClientIP: "192.0.2.7",
		Headers: map[string]simulate.Values{"x-user-id": {"alice", "bob"}, "cookie": {"a=1; b=2"}},
	}, r)
}

func TestQueryNeedsNoPath(t *testing.T) {
	r, err := described(t, "--query", "a=b").Request()
	require.NoError(t, err)
	require.Equal(t, "/?a=b", r.Path)
}

func TestNothingIsDescribed(t *testing.T) {
	require.True(t, described(t).IsZero())
	empty := FromForm(url.Values{"header": {"\n"}, "path": {" "}})
	require.True(t, empty.IsZero())
	require.Empty(t, empty.Form())
	for _, args := range [][]string{
		{"--client-ip", "192.0.2.7"}, {"--request", "{}"}, {"--cookie", "a=b"}, {"--query", "a=b"}, {"--method", "GET"},
	} {
		require.False(t, described(t, args...).IsZero(), args)
	}
}

func TestJSONTakesTheAddressOfTheFlag(t *testing.T) {
	r, err := described(t, "--request", `{"path":"/x","at_ms":1}`, "--client-ip", "192.0.2.7").Request()
	require.NoError(t, err)
	require.Equal(t, "192.0.2.7", r.ClientIP)
	require.NotNil(t, r.When)
}

// TestErrorsNameThePart: what is wrong, in which part, without the value of a header.
func TestErrorsNameThePart(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"", "no request is described"},
		{"--header s3cret", `header has no ":" after its name`},
		{"--query tenant", `query has no "=" after its name`},
		{"--client-ip nowhere", `request: client_ip: "nowhere" is not an IP address`},
		{"--header x:s3cret\xff", "request: headers: x is not UTF-8"},
		{"--path / --request {}", "the request is described twice: as JSON and in parts"},
		{`--request {"paht":"/"}`, `request cannot be read: unknown field "paht"`},
		{
			`--client-ip 192.0.2.7 --request {"client_ip":"192.0.2.8"}`,
			"client-ip is given twice: --request has a client_ip too",
		},
		{`--request {"at_ms":1}`, "request has a time, but a running proxy explains what holds now"},
		{"--header x:" + strings.Repeat("s3cret", 10_000), "leave out headers that no rule uses"},
	} {
		_, err := described(t, strings.Fields(tc.args)...).RequestForProxy()
		var wrong *Error
		require.ErrorAs(t, err, &wrong, tc.args)
		require.ErrorContains(t, err, tc.want)
		require.NotContains(t, err.Error(), "s3cret")
	}
}
