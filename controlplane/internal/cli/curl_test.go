package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// sent is a request with the headers that curl sends by itself.
func sent(method, host, path string, headers ...string) *simulate.Request {
	r := &simulate.Request{Method: method, Host: host, Path: path, Headers: map[string][]string{
		"accept": {"*/*"}, "user-agent": {assumedCurl},
	}, Properties: map[string]string{"request.scheme": "http"}}
	for i := 0; i < len(headers); i += 2 {
		name, value := headers[i], headers[i+1]
		if name[0] == '!' {
			delete(r.Headers, name[1:])
			continue
		}
		if name == "accept" || name == "user-agent" {
			delete(r.Headers, name)
		}
		r.Headers[name] = append(r.Headers[name], value)
	}
	return r
}

func secure(r *simulate.Request) *simulate.Request {
	r.Properties["request.scheme"] = "https"
	return r
}

func TestParseCurl(t *testing.T) {
	form := []string{"content-type", "application/x-www-form-urlencoded", "content-length"}
	for _, c := range []struct {
		name string
		args []string
		want *simulate.Request
	}{
		{"plain", []string{"curl", "https://a.example:8443/x/../y//z?q=1#f"}, secure(sent("GET", "a.example:8443", "/y//z?q=1"))},
		{"without its name, without scheme", []string{"a.example"}, sent("GET", "a.example", "/")},
		{"path as it is", []string{"--path-as-is", "http://a/x/../y%2f"}, sent("GET", "a", "/x/../y%2f")},
		{"escapes stay", []string{"http://a/x%2Fy"}, sent("GET", "a", "/x%2Fy")},
		{"method and headers", []string{"-X", "PUT", "-H", "X-User-Id:  alice ", "--header", "x-user-id: bob", "-H", "Host: b.example", "http://a/"},
			sent("PUT", "b.example", "/", "x-user-id", "alice", "x-user-id", "bob")},
		{"header removed, and empty", []string{"-H", "Accept:", "-H", "X-Empty;", "http://a/"}, sent("GET", "a", "/", "!accept", "", "x-empty", "")},
		{"header in place of curl's own", []string{"-A", "x", "-H", "User-Agent: y", "http://a/"}, sent("GET", "a", "/", "user-agent", "y")},
		{"data", []string{"http://a/", "-d", "x=1", "--data-raw", "y=2"}, sent("POST", "a", "/", append(form, "7")...)},
		{"data from a file", []string{"http://a/", "--data-binary", "@f"}, sent("POST", "a", "/", form[:2]...)},
		{"data with a type", []string{"http://a/", "-d", "{}", "-H", "content-type: application/json"}, sent("POST", "a", "/", "content-type", "application/json", "content-length", "2")},
		{"json", []string{"http://a/", "--json", "{}"}, sent("POST", "a", "/", "accept", "application/json", "content-type", "application/json", "content-length", "2")},
		{"get with data", []string{"-G", "http://a/?z=0", "-d", "x=1", "--data-urlencode", "y=a b&c"}, sent("GET", "a", "/?z=0&x=1&y=a%20b%26c")},
		{"head", []string{"-I", "http://a/"}, sent("HEAD", "a", "/")},
		{"upload", []string{"-T", "file", "http://a/"}, sent("PUT", "a", "/")},
		{"many in one word", []string{"-sSLkXDELETE", "-o/dev/null", "--url", "http://a/"}, sent("DELETE", "a", "/")},
		{"agent, cookie, referer, user", []string{"-A", "bot", "-b", "a=1; b=2", "-e", "http://r/", "-u", "bob:pw", "--compressed", "http://a/"},
			sent("GET", "a", "/", "user-agent", "bot", "cookie", "a=1; b=2", "referer", "http://r/", "authorization", "Basic Ym9iOnB3", "accept-encoding", "deflate, gzip, br, zstd")},
		{"user in the URL", []string{"http://bob:pw@a/"}, sent("GET", "a", "/", "authorization", "Basic Ym9iOnB3")},
		{"bearer", []string{"--oauth2-bearer", "t", "http://a/"}, sent("GET", "a", "/", "authorization", "Bearer t")},
	} {
		got, err := parseCurl(c.args)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
}

func TestParseCurlRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"wget is not curl":                                                               {"wget", "http://a/?s3cret"},
		"unknown curl option --frobnicate":                                               {"--frobnicate=s3cret", "http://a/"},
		"unknown curl option -y":                                                         {"-sy", "s3cret", "http://a/"},
		"curl option -H lacks its value":                                                 {"http://a/", "-H"},
		`curl option -H: lacks the ":" behind its name`:                                  {"http://a/", "-H", "s3cret"},
		"curl option -H: takes a header here, and no file of them":                       {"http://a/", "-H", "@s3cret"},
		"curl option -b: takes cookies here, as in -b 'name=value', and no file of them": {"http://a/", "-b", "s3cret.txt"},
		"curl option -G: data from a file is not read: put it into the URL":              {"-G", "-d", "@s3cret", "http://a/"},
		"curl: there are two URLs: explain takes one request":                            {"http://a/", "http://u:s3cret@b/"},
		"curl: the URL is none of http or https":                                         {"ftp://u:s3cret@a/"},
		"curl option --url: the URL is none of http or https":                            {"--url", "http://u:s3cret@a:b/"},
		"curl: there is no URL":                                                          {"curl", "-s"},
	} {
		_, err := parseCurl(args)
		require.EqualError(t, err, want)
		require.Equal(t, ExitUsage, ExitCode(err), want)
		require.NotContains(t, err.Error()+Hint(err), "s3cret")
	}
}

func TestRequestIsASCII(t *testing.T) {
	r := &simulate.Request{Path: "/é😀", Headers: map[string][]string{"a": {"\u2028<"}}}
	require.Equal(t, `{"path":"/\u00e9\ud83d\ude00","headers":{"a":["\u2028\u003c"]}}`, r.Header()) //nolint:testifylint // its bytes are what matters
}
