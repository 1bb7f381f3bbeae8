package proxy_test

import (
	"fmt"
	"strings"
)

// shapes are requests that two parsers may read in two ways.
func shapes() map[string]string {
	get := func(lines ...string) string {
		return "GET /a HTTP/1.1\r\nHost: example.com\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	post := func(body string, lines ...string) string {
		return "POST /a HTTP/1.1\r\nHost: example.com\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n" + body
	}
	smuggled := "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: example.com\r\n\r\n"
	m := map[string]string{
		"length and chunked":      post(smuggled, "Content-Length: 60", "Transfer-Encoding: chunked"),
		"chunked and length":      post(smuggled, "Transfer-Encoding: chunked", "Content-Length: 5"),
		"lengths differ":          post("hello", "Content-Length: 5", "Content-Length: 0"),
		"lengths alike":           post("hello", "Content-Length: 5", "Content-Length: 5"),
		"list of lengths":         post("hello", "Content-Length: 5, 5"),
		"negative length":         post("hello", "Content-Length: -5"),
		"length with plus":        post("hello", "Content-Length: +5"),
		"length with space":       post("hello", "Content-Length: 5 5"),
		"hexadecimal length":      post("hello", "Content-Length: 0x5"),
		"empty length":            post("", "Content-Length:"),
		"huge length":             post("hello", "Content-Length: 99999999999999999999"),
		"length of a GET":         strings.Replace(post("hello", "Content-Length: 5"), "POST", "GET", 1),
		"encoding unknown":        post(smuggled, "Transfer-Encoding: xchunked"),
		"encoding identity":       post(smuggled, "Transfer-Encoding: identity"),
		"encoding gzip, chunked":  post(smuggled, "Transfer-Encoding: gzip, chunked"),
		"encoding chunked, gzip":  post(smuggled, "Transfer-Encoding: chunked, gzip"),
		"encoding twice":          post(smuggled, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
		"encoding twice, unlike":  post(smuggled, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
		"encoding, tab":           post(smuggled, "Transfer-Encoding:\tchunked"),
		"encoding, vertical tab":  post(smuggled, "Transfer-Encoding: \x0bchunked"),
		"encoding, space before":  post(smuggled, "Transfer-Encoding : chunked"),
		"encoding upper case":     post("5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: CHUNKED"),
		"encoding of HTTP/1.0":    strings.Replace(post(smuggled, "Transfer-Encoding: chunked"), "HTTP/1.1", "HTTP/1.0", 1),
		"encoding folded":         post(smuggled, "Transfer-Encoding:\r\n chunked"),
		"chunked":                 post("5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk extension":         post("5;a=b\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk size no number":    post("zz\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk size negative":     post("-5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk size 0x5":          post("0x5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk size huge":         post("fffffffffffffffff\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk size empty":        post("\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk longer than said":  post("3\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		"chunk ends with LF":      post("5\nhello\n0\n\n", "Transfer-Encoding: chunked"),
		"trailer":                 post("5\r\nhello\r\n0\r\nX-User-Id: bob\r\n\r\n", "Transfer-Encoding: chunked", "Trailer: x-user-id", "X-User-Id: alice"),
		"trailer nobody declared": post("5\r\nhello\r\n0\r\nX-User-Id: bob\r\n\r\n", "Transfer-Encoding: chunked", "X-User-Id: alice"),
		"trailer with length":     post("5\r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n", "Transfer-Encoding: chunked"),
		"folded header":           get("X-User-Id: alice\r\n bob"),
		"folded first header":     "GET /a HTTP/1.1\r\n X-User-Id: alice\r\nHost: example.com\r\n\r\n",
		"lines end with LF":       "GET /a HTTP/1.1\nHost: example.com\nX-User-Id: alice\n\n",
		"one line ends with LF":   get("X-User-Id: alice\nX-User-Id: bob"),
		"CR alone":                get("X-User-Id: alice\rX-User-Id: bob"),
		"NUL in a value":          get("X-User-Id: al\x00ice"),
		"control in a value":      get("X-User-Id: al\x01ice"),
		"DEL in a value":          get("X-User-Id: al\x7fice"),
		"latin-1 in a value":      get("X-User-Id: al\xefce"),
		"tab in a value":          get("X-User-Id: al\tice"),
		"spaces around a value":   get("X-User-Id:   alice   "),
		"empty value":             get("X-User-Id:"),
		"space before colon":      get("X-User-Id : alice"),
		"space in a name":         get("X User: alice"),
		"empty name":              get(": alice"),
		"no colon":                get("X-User-Id"),
		"colon in a name":         get(":path: /b"),
		"brackets in a name":      get("X-User[Id]: alice"),
		"latin-1 in a name":       get("X-\xefser: alice"),
		"underscore":              get("X_User_Id: alice"),
		"underscore and dash":     get("X_User_Id: alice", "X-User-Id: bob"),
		"header twice":            get("X-User-Id: alice", "X-User-Id: bob"),
		"header twice, one empty": get("X-User-Id:", "X-User-Id: bob"),
		"Connection names a key":  get("Connection: x-user-id", "X-User-Id: alice"),
		"Connection names both":   get("Connection: keep-alive, X-USER-ID", "X-User-Id: alice"),
		"Connection names host":   get("Connection: host", "X-User-Id: alice"),
		"Keep-Alive":              get("Keep-Alive: timeout=5", "X-User-Id: alice"),
		"Proxy-Connection":        get("Proxy-Connection: keep-alive"),
		"TE":                      get("TE: trailers"),
		"TE gzip":                 get("TE: gzip, trailers"),
		"TE in Connection":        get("Connection: TE", "TE: trailers"),
		"websocket":               get("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"),
		"h2c":                     get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
		"Upgrade alone":           get("Upgrade: websocket"),
		"expects other things":    get("Expect: 200-ok"),
		"expects to go on":        post("hello", "Expect: 100-continue", "Content-Length: 5"),
		"no host":                 "GET /a HTTP/1.1\r\n\r\n",
		"empty host":              "GET /a HTTP/1.1\r\nHost:\r\n\r\n",
		"host twice":              "GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"host twice, alike":       "GET /a HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
		"preface of HTTP/2":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/1.0":                "GET /a HTTP/1.0\r\nHost: example.com\r\n\r\n",
		"HTTP/1.0 without host":   "GET /a HTTP/1.0\r\n\r\n",
		"HTTP/0.9":                "GET /a\r\n\r\n",
		"HTTP/1.2":                "GET /a HTTP/1.2\r\nHost: example.com\r\n\r\n",
		"HTTP/2.0":                "GET /a HTTP/2.0\r\nHost: example.com\r\n\r\n",
		"http/1.1":                "GET /a http/1.1\r\nHost: example.com\r\n\r\n",
		"two spaces":              "GET  /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"tabs":                    "GET\t/a\tHTTP/1.1\r\nHost: example.com\r\n\r\n",
		"empty lines first":       "\r\n\r\nGET /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"TRACE":                   "TRACE /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"TRACK":                   "TRACK /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"CONNECT":                 "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
		"CONNECT a path":          "CONNECT /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"OPTIONS *":               "OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"get":                     "get /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"method of its own":       "BREW /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"method no token":         "G@T /a HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"two in one":              get("X-User-Id: alice") + get("X-User-Id: bob"),
		"100 headers":             get(many(99)...),
		"101 headers":             get(many(100)...),
		"60 KiB of headers":       get("X-Long: " + strings.Repeat("a", 60<<10)),
		"58 KiB of headers":       get("X-Long: " + strings.Repeat("a", 58<<10)),
		"20 KiB of a path":        "GET /" + strings.Repeat("a", 20<<10) + " HTTP/1.1\r\nHost: example.com\r\n\r\n",
	}
	for _, method := range strings.Fields("ACL BIND CHECKOUT COPY LINK LOCK M-SEARCH MERGE MKACTIVITY MKCALENDAR MKCOL MOVE NOTIFY PROPFIND PROPPATCH PURGE REBIND REPORT SEARCH SOURCE SUBSCRIBE UNBIND UNLINK UNLOCK UNSUBSCRIBE PATCH PUT DELETE OPTIONS QUERY Get PRI INVOKE DESCRIBE") {
		m[method] = method + " /a HTTP/1.1\r\nHost: example.com\r\n\r\n"
	}
	for _, host := range []string{"a b", "a,b", "a/b", "a@b", "a\\b", "a;b", "a:b", "a:", ":80", "[::1]", "[::1", "a%41", "\xc3\xa9", "A.Example", "a:99999", "a?b", "a#b", "http://a", "a<b", "a_b", "a~b", "a|b", "a\"b", "a{b"} {
		m["host "+host] = "GET /a HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	}
	return m
}

func many(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("X-%d: a", i)
	}
	return lines
}

// differentShapes says why a shape may have another outcome here than in Envoy.
var differentShapes = map[string]string{
	"two spaces":             oneSpace,
	"tabs":                   oneSpace,
	"empty lines first":      "net/http refuses empty lines before a request",
	"CR alone":               "net/http refuses a carriage return within a line",
	"chunk longer than said": "net/http refuses bytes after a chunk, which Envoy skips",
	"empty host":             "no host, no request",
	"host twice":             "net/http refuses two hosts, which Envoy joins",
	"host twice, alike":      "net/http refuses two hosts, which Envoy joins",
	"host a@b":               "net/http refuses a user in the host",
	"expects other things":   "net/http refuses expectations it does not know",
	"length and chunked":     dropsLength,
	"chunked and length":     dropsLength,
	"lengths alike":          "net/http makes one length of two that are alike",
	"Connection names host":  "the host is no header here, so Connection cannot name it",
	"websocket":              "an upgrade is not taken; Envoy refuses the request",
}

const (
	oneSpace    = "net/http wants single spaces in the request line"
	dropsLength = "net/http drops the length beside chunks; the upstream gets chunks alone"
)
