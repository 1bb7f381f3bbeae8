package e2e

import (
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// archiveOf are the files of testdata/NAME.txtar.
func archiveOf(t *testing.T, name string) []txtar.File {
	archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	require.NoError(t, err)
	return archive.Files
}

// requestOf is the path of a request in words, "[METHOD] PATH [NAME=VALUE…]", and its headers in pairs.
func requestOf(text string) (path string, headers []string) {
	words := strings.Fields(text)
	if !strings.HasPrefix(words[0], "/") {
		headers, words = append(headers, ":method", words[0]), words[1:]
	}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		headers = append(headers, name, strings.ReplaceAll(value, "␣", " "))
	}
	return words[0], headers
}

// rows is a scenario of policies, requests and what becomes of these: testdata/NAME.txtar, whose
// files are done in their order. Each is one of these, by its name:
//
//	apply, listen       a policy: of the driver's site, or of a listener of its own
//	listen tokens       a policy of a listener behind a jwt_authn
//	start TAG           a policy of a proxy whose filter is compiled with a build tag
//	refused MESSAGE     a policy that the control plane refuses, with this message
//	edit                "OLD\n=>\nNEW": what the next listen changes of its bootstrap
//	steps [VERSION…]    steps, a line each, over the versions of HTTP that the proxy speaks of
//	                    these; default: HTTP/1
//	steps envoy         the same, on Envoys alone; steps simulate: by simulated alone
//
// In all files FAR is far, MANAGED is managed, TOKEN_SHA256 and BEARER are those of the token,
// LONG are 10,000 bytes, \xff and \x00 are one, and OWN_PORT is the port of the proxy that the
// last file has started. The function step says what a step is.
func rows(name string) func(t *testing.T, d driver) {
	return func(t *testing.T, d driver) {
		s := script{d: d, signed: newTokens(t), site: sync.OnceValue(func() site { return siteOf(t, d) })}
		for _, f := range archiveOf(t, name) {
			s.do(t, f.Name, s.expanded(string(f.Data)))
		}
	}
}

// script is a scenario of rows under way.
type script struct {
	d      driver
	signed tokens
	site   func() site
	proxy  *proxy                        // to which steps send requests: of the last file that made one
	edit   func(bootstrap []byte) []byte // for the next listen; nil: none
}

var abbreviations = strings.NewReplacer(
	"FAR", far, "MANAGED", managed, "TOKEN_SHA256", tokenSHA256, "BEARER", "Bearer␣"+token,
	"LONG", strings.Repeat("k", 10_000), `\xff`, "\xff", `\x00`, "\x00",
)

// expanded is a file's text without abbreviations.
func (s *script) expanded(text string) string {
	text = abbreviations.Replace(text)
	if s.proxy == nil {
		return text
	}
	_, port, _ := net.SplitHostPort(s.proxy.address)
	return strings.ReplaceAll(text, "OWN_PORT", port)
}

// do does what a file says.
func (s *script) do(t *testing.T, name, text string) {
	switch what, more, _ := strings.Cut(name, " "); what {
	case "apply":
		s.apply(t, text)
	case "refused":
		require.NotEmpty(t, more, "refused with which words?")
		s.site().refused(t, text, more)
	case "edit":
		before, after, _ := strings.Cut(text, "\n=>\n")
		s.edit = replacing(before, strings.TrimSuffix(after, "\n"))
	case "listen":
		require.Contains(t, []string{"", "tokens"}, more, name)
		s.listen(t, text, more == "tokens")
	case "start":
		s.proxy = s.d.start(t, proxyOptions{policy: text, wasm: buildtest.Filter(t, more)})
	case "steps":
		s.steps(t, text, more)
	default:
		require.Fail(t, "no such file", name)
	}
}

// apply applies a policy to the site: in the scenario's domain, or in that which it derives from it.
func (s *script) apply(t *testing.T, text string) {
	site := s.site()
	if strings.Contains(text, "DOMAIN") {
		site.control.apply(t, strings.ReplaceAll(text, "DOMAIN", site.domain))
	} else {
		site.apply(t, text)
	}
	s.proxy = site.proxy
}

// listen makes a listener for a policy, perhaps behind a filter that verifies tokens.
func (s *script) listen(t *testing.T, text string, withTokens bool) {
	edit := s.edit
	s.edit = nil
	s.proxy = s.d.listen(t, proxyOptions{policy: text, edit: func(bootstrap []byte) []byte {
		if edit != nil {
			bootstrap = edit(bootstrap)
		}
		if withTokens {
			bootstrap = s.signed.verified(t, bootstrap)
		}
		return bootstrap
	}})
}

// steps does the steps of a file.
func (s *script) steps(t *testing.T, text, by string) {
	for line := range strings.Lines(text) {
		if line == "\n" {
			continue
		}
		for _, version := range s.d.stepVersions(t, by) {
			s.proxy.step(t, s.signed, strings.TrimSpace(line), version)
		}
	}
}

// stepVersions are the versions of HTTP over which a driver does "steps BY".
func (d driver) stepVersions(t *testing.T, by string) []string {
	switch {
	case by == "simulate", by == "envoy" && d.envoy == "":
		return nil
	case by == "envoy", by == "":
		return []string{"HTTP/1"}
	}
	versions := strings.Fields(by)
	require.Subset(t, []string{"HTTP/1", "HTTP/2"}, versions)
	return slices.DeleteFunc(versions, func(v string) bool { return !slices.Contains(d.versions(), v) })
}

// step does a line of steps, which is one of these:
//
//	REQUEST → STATUS [NAME=VALUE…]  the request of requestOf has this response: see expect
//	raw REQUEST → …                 the same, with the target sent as it is
//	await REQUEST → STATUS          the request is sent until it has the status
//	N of REQUEST → PASSED           N requests over 16 connections, of which so many pass
//	used RULE KEY → N               each window of a counter says N
//	metric NAME RULE → N            a metric comes to N
//
// The header ":claims" becomes a token with these claims, ":forged" one that nobody vouches for.
func (p *proxy) step(t *testing.T, signed tokens, line, version string) {
	asked, want, found := strings.Cut(line, " → ")
	require.True(t, found, line)
	word, rest, _ := strings.Cut(asked, " ")
	switch word {
	case "used":
		p.stepUsed(t, rest, want)
	case "await":
		eventually(t, 10*time.Second, line, func() bool {
			res, _ := p.ask(t, signed, rest, version)
			return want == strconv.Itoa(res.StatusCode)
		})
	case "metric":
		name, rule, _ := strings.Cut(rest, " ")
		eventually(t, 10*time.Second, line, func() bool {
			n, _ := p.metric(t, name, rule)
			return want == strconv.FormatUint(n, 10)
		})
	default:
		if n, of, isBurst := strings.Cut(asked, " of "); isBurst {
			p.stepBurst(t, n, of, want)
			return
		}
		res, body := p.ask(t, signed, asked, version)
		expect(t, line, want, res, body)
	}
}

// stepBurst sends n requests at once. All are allowed or denied, and as many pass as wanted.
func (p *proxy) stepBurst(t *testing.T, n, of, want string) {
	path, headers := requestOf(of)
	sent, err := strconv.Atoi(n)
	require.NoError(t, err)
	got := p.load(16).send(t, sent, func(int) request { return request{path, headers[0], headers[1]} })
	require.Equal(t, want, strconv.Itoa(count(got, allowed)), of)
	require.Equal(t, sent, count(got, allowed)+count(got, denied), of)
}

// stepUsed asks for the counter of "RULE KEY". No window of it may say another number.
func (p *proxy) stepUsed(t *testing.T, of, want string) {
	rule, key, _ := strings.Cut(of, " ")
	got := p.operate(t, "get", "rule="+rule+"&key="+key)
	require.Equal(t, want, strconv.FormatInt(got.Value, 10), of)
	for _, w := range got.Windows {
		require.EqualValues(t, got.Value, w.Used, "%s: no window has a phantom count", of)
	}
}

// expect compares a response with "STATUS [NAME=VALUE…]": its status, * for any, and its fields, of
// which "body" and the names of "trailers" are two. ~VALUE is a regular expression, ␣ a blank, ↵ the
// end of a line, and ⏎ stands between two fields of one name.
func expect(t *testing.T, line, want string, res *http.Response, body string) {
	status, fields, _ := strings.Cut(want, " ")
	if status != "*" {
		require.Equal(t, status, strconv.Itoa(res.StatusCode), line)
	}
	for field := range strings.FieldsSeq(fields) {
		name, value, _ := strings.Cut(strings.NewReplacer("␣", " ", "↵", "\n").Replace(field), "=")
		seen := strings.Join(res.Header.Values(name), "⏎")
		switch name {
		case "body":
			seen = body
		case "trailers":
			seen = strings.Join(slices.Collect(maps.Keys(res.Trailer)), "⏎")
		}
		if pattern, ok := strings.CutPrefix(value, "~"); ok {
			require.Regexp(t, "^"+pattern+"$", seen, line)
		} else {
			require.Equal(t, value, seen, line)
		}
	}
}

// ask sends the request of a step.
func (p *proxy) ask(t *testing.T, signed tokens, asked, version string) (*http.Response, string) {
	target, isRaw := strings.CutPrefix(asked, "raw ")
	path, headers := requestOf(target)
	method, lines := http.MethodGet, []string(nil)
	for i := 0; i < len(headers); i += 2 {
		switch by := signed; headers[i] {
		case ":forged":
			by = newTokens(t)
			fallthrough
		case ":claims":
			headers[i], headers[i+1] = "authorization", by.sign(t, headers[i+1])
		case ":method":
			method = headers[i+1]
			continue
		}
		lines = append(lines, headers[i]+": "+headers[i+1])
	}
	if isRaw {
		return p.raw(t, method, path, lines...), ""
	}
	res, body := p.get(t, path, append(headers, ":version", version)...)
	require.Contains(t, res.Proto, version)
	return res, body
}
