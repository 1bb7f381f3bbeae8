package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const failedLogins = `
version: 1
` + managed + `rules:
  - {name: failed-logins, match: {paths: [/login]}, limits: [5/366d], settle: {when: {status: [401, 403]}}}
  - {name: some-fail, match: {paths: [/some]}, limits: [5/366d], settle: {when: {status: [401, 403]}}}
`

// TestFailedLogins: exactly those that fail count in the end, and never more than the limit
// run or have failed. Whom only others in flight deny may try again after 1 s.
func TestFailedLogins(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d driver) {
		log, upstream := filepath.Join(t.TempDir(), "access"), startAnswering(t)
		upstream.took = 40 * time.Millisecond
		p := d.start(t, proxyOptions{policy: failedLogins, upstream: upstream.URL, edit: func(b []byte) []byte {
			return logged(b, log, "%RESPONSE_CODE% %FILTER_STATE(wasm.sluice.verdict:PLAIN)%")
		}})
		held := p.succeedAtOnce(t, 40)
		require.Positive(t, held)
		require.Zero(t, used(t, p, "failed-logins"))
		if d.envoy != "" {
			eventually(t, 20*time.Second, "the access log", func() bool {
				return strings.Count(read(t, log), "429 failed-logins=denied:held\n") == held
			})
		}
		requireOver := func(path, rule string) {
			require.EqualValues(t, 5, used(t, p, rule))
			require.Equal(t, 20, count(p.load(4).send(t, 20, func(int) request { return request{path, "x-do", "200"} }), denied))
			require.Equal(t, 5, upstream.failed)
			require.LessOrEqual(t, upstream.most, 5)
		}
		upstream.forget(t)
		statuses := p.load(100).send(t, 100, func(int) request { return request{"/login", "x-do", "401"} })
		require.Equal(t, []int{5, 95}, []int{count(statuses, 401), count(statuses, denied)})
		require.Equal(t, 5, upstream.reached)
		requireOver("/login", "failed-logins")

		upstream.forget(t)
		for round := 0; upstream.failed < 5; round++ {
			require.Less(t, round, 50)
			p.load(12).send(t, 24, func(i int) request { return request{"/some", "x-do", []string{"200", "401", "401"}[i%3]} })
		}
		requireOver("/some", "some-fail")
	})
}

// logged has an Envoy write a line of that format about each request.
func logged(bootstrap []byte, path, format string) []byte {
	const prefix = "          stat_prefix: ingress\n"
	return replacing(prefix, prefix+
		"          access_log: [{name: file, typed_config: {'@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: "+path+
		`, log_format: {text_format_source: {inline_string: "`+format+`\n"}}}}]`+"\n")(bootstrap)
}

// succeedAtOnce sends logins that all succeed, and returns how many were told to try again.
func (p *proxy) succeedAtOnce(t *testing.T, n int) (held int) {
	told := make([]string, n)
	atOnce(n, func(i int) {
		if res, _, err := p.try("/login", "x-do", "200"); err != nil {
			told[i] = err.Error()
		} else if res.StatusCode == denied {
			told[i] = res.Header.Get("retry-after")
		}
	})
	for _, after := range told {
		if after != "" {
			require.Equal(t, "1", after)
			held++
		}
	}
	return held
}
