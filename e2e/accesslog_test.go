package e2e

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// pageLog finds the access log in docs/envoy.md: a format, and two lines in it.
var pageLog = regexp.MustCompile(`(?s)\n    log_format:\n(.*?)\n\n    (429 [^\n]*)\n    (200 [^\n]*)\n`)

// An Envoy with the page's format for an access log writes the page's lines.
func TestAccessLogOfThePage(t *testing.T) {
	t.Parallel()
	page := pageLog.FindStringSubmatch(read(t, buildtest.Root(), "docs", "envoy.md"))
	require.NotNil(t, page, "docs/envoy.md has no access log in this form")
	everyEnvoy(t, func(t *testing.T, d driver) {
		log := filepath.Join(t.TempDir(), "access.log")
		p := d.listen(t, proxyOptions{policy: `
version: 1
rules:
  - {name: per-user, match: {paths: ["/a*"]}, key: [{header: x-user-id}], limits: [1/366d]}
  - {name: per-address, match: {paths: [/a]}, key: [client_ip], limits: [9/366d]}
  - {name: trial, match: {paths: [/a/b]}, mode: shadow, limits: [0/366d]}
`, edit: replacing("          stat_prefix: ingress\n", `          stat_prefix: ingress
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: `+log+`
              log_format:
`+strings.ReplaceAll("\n"+page[1], "\n    ", "\n              ")[1:]+"\n")})
		for _, r := range [][2]string{{"/a", "alice"}, {"/a", "alice"}, {"/a/b", "bob"}} {
			p.get(t, r[0], ":host", "h", "x-user-id", r[1])
		}
		var lines []string
		eventually(t, 20*time.Second, "the access log", func() bool {
			lines = strings.Split(strings.TrimSpace(read(t, log)), "\n")
			return strings.Contains(read(t, log), "trial")
		})
		require.Subset(t, lines, page[2:])
	})
}
