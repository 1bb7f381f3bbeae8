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
// files are done in their order.
//
//	apply, listen       a policy: of the driver's site, or of a listener of its own
//	listen tokens       a policy of a listener behind a jwt_authn
//	start TAG           a policy of a proxy whose filter is compiled with a build tag
//	refused MESSAGE     a policy that the control plane refuses, with this message
//	edit                "OLD\n=>\nNEW": what the next listen changes of its bootstrap
//	steps [VERSION…]    requests, a line each, over the versions of HTTP that the proxy speaks of
//	                    these; default: HTTP/1
//	steps envoy         the same, on Envoys alone; steps simulate: by simulated alone
//
// A step is "REQUEST → STATUS [NAME=VALUE…]": a request of requestOf and a response with these
// fields, of which "body" and the names of "trailers" are two. * is any status, ~VALUE a regular
// expression, ␣ a blank and ↵ the end of a line; ⏎ is between two fields of one name. LONG are
// 10,000 bytes, \xff and \x00 are one. ":claims" are those of a token. In front of a request, "raw"
// sends a target as it is, "await" asks until it has the status, and "N of" sends N requests over
// 16 connections, of which as many pass as come after the arrow. "used RULE KEY → N" is what each
// window of a counter says, and "metric NAME RULE → N" what a metric comes to.
//
// In all files FAR is far, MANAGED is managed, TOKEN_SHA256 and BEARER are those of the token, and
// OWN_PORT is the port of the last proxy that listen or start has started.
func rows(name string) func(t *testing.T, d driver) {
	return func(t *testing.T, d driver) {
		here := sync.OnceValue(func() site { return siteOf(t, d) })
		var p *proxy
		var edit func([]byte) []byte
		signed := newTokens(t)
		for _, f := range archiveOf(t, name) {
			text := strings.NewReplacer("FAR", far, "MANAGED", managed, "TOKEN_SHA256", tokenSHA256, "BEARER", "Bearer␣"+token,
				"LONG", strings.Repeat("k", 10_000), `\xff`, "\xff", `\x00`, "\x00").Replace(string(f.Data))
			if p != nil {
				_, port, _ := net.SplitHostPort(p.address)
				text = strings.ReplaceAll(text, "OWN_PORT", port)
			}
			switch what, more, _ := strings.Cut(f.Name, " "); what {
			case "apply":
				s := here()
				if strings.Contains(text, "DOMAIN") {
					s.control.apply(t, strings.ReplaceAll(text, "DOMAIN", s.domain))
				} else {
					s.apply(t, text)
				}
				p = s.proxy
			case "refused":
				require.NotEmpty(t, more, "refused with which words?")
				here().refused(t, text, more)
			case "edit":
				before, after, _ := strings.Cut(text, "\n=>\n")
				edit = replacing(before, strings.TrimSuffix(after, "\n"))
			case "listen":
				require.Contains(t, []string{"", "tokens"}, more, f.Name)
				p = d.listen(t, proxyOptions{policy: text, edit: func(bootstrap []byte) []byte {
					if edit != nil {
						bootstrap = edit(bootstrap)
					}
					if more == "tokens" {
						bootstrap = signed.verified(t, bootstrap)
					}
					return bootstrap
				}})
				edit = nil
			case "start":
				p = d.start(t, proxyOptions{policy: text, wasm: buildtest.Filter(t, more)})
			case "steps":
				for line := range strings.Lines(text) {
					for _, version := range d.steps(t, more) {
						if line != "\n" {
							p.step(t, signed, strings.TrimSpace(line), version)
						}
					}
				}
			default:
				require.Fail(t, "no such file", f.Name)
			}
		}
	}
}

// steps are the versions of HTTP over which a driver does "steps BY".
func (d driver) steps(t *testing.T, by string) []string {
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

// step does a line of steps.
func (p *proxy) step(t *testing.T, signed tokens, line, version string) {
	asked, want, found := strings.Cut(line, " → ")
	require.True(t, found, line)
	switch word, rest, _ := strings.Cut(asked, " "); word {
	case "used":
		rule, key, _ := strings.Cut(rest, " ")
		got := p.operate(t, "get", "rule="+rule+"&key="+key)
		require.Equal(t, want, strconv.FormatInt(got.Value, 10), line)
		for _, w := range got.Windows {
			require.EqualValues(t, got.Value, w.Used, "%s: no window has a phantom count", line)
		}
		return
	case "await":
		eventually(t, 10*time.Second, line, func() bool {
			res, _ := p.ask(t, signed, rest, version)
			return want == strconv.Itoa(res.StatusCode)
		})
		return
	case "metric":
		name, rule, _ := strings.Cut(rest, " ")
		eventually(t, 10*time.Second, line, func() bool {
			n, _ := p.metric(t, name, rule)
			return want == strconv.FormatUint(n, 10)
		})
		return
	}
	if n, of, burst := strings.Cut(asked, " of "); burst {
		path, headers := requestOf(of)
		sent, err := strconv.Atoi(n)
		require.NoError(t, err)
		got := p.load(16).send(t, sent, func(int) request { return request{path, headers[0], headers[1]} })
		require.Equal(t, want, strconv.Itoa(count(got, allowed)), line)
		require.Equal(t, sent, count(got, allowed)+count(got, denied), line)
		return
	}
	res, body := p.ask(t, signed, asked, version)
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
