package docs_test

import (
	"crypto/sha256"
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/charttest"
)

// chartValues are the values for docs/operating.md. The key of each file is its name on the page.
const chartValues = `
image: {repository: registry.example.com/sluice}
proxies: [{namespace: edge}]
serve:
  flags:
    access: {secret: sluice, key: access}
    http-client-ca: {secret: sluice, key: ca-people.pem}
    xds-client-ca: {secret: sluice, key: ca-proxies.pem}
    node-names: {secret: sluice, key: node-names}
    manage-token-file: {secret: sluice, key: management.token}
    manage-allow: 10.0.0.0/24
    manage-ca: {secret: sluice, key: ca-management.pem}
    wasm: /usr/lib/sluice/sluice.wasm
`

// serveOfChart are the arguments of the chart's serve, with the addresses and files of a page.
func serveOfChart(t *testing.T) string {
	t.Helper()
	rendered, err := charttest.Template(t, chartValues)
	require.NoError(t, err)
	serve, found := charttest.Containers(t, rendered)["serve"]
	require.True(t, found)
	var args []string
	for _, arg := range serve.Args {
		flag, value, _ := strings.Cut(arg, "=")
		if file, isFile := serve.Files[value]; isFile {
			arg = flag + "=/etc/sluice/" + file.Key
		}
		args = append(args, strings.NewReplacer("=:", "=0.0.0.0:", "/tls.crt", "/control.pem",
			"/tls.key", "/control.key").Replace(arg))
	}
	return strings.Join(args, " ")
}

var startCommand = regexp.MustCompile(`(?s)ExecStart=.*?\nRestart=`)

// TestOperatingPageOnTheChart runs the page's commands with the serve of the chart.
func TestOperatingPageOnTheChart(t *testing.T) {
	t.Parallel()
	p := newPage(t, "etc/sluice")
	d := document(t, "docs/operating.md")
	command := "ExecStart=/usr/local/bin/sluice " + serveOfChart(t) + "\nRestart="
	require.Len(t, startCommand.FindAllString(d.text, -1), 1)
	d.text = startCommand.ReplaceAllLiteralString(d.text, command)
	p.run(t, d)
}

// withToken has the commands of a page that ask serve show a token. The function's serve takes the
// place of the job's shell, which is what ends with the page.
const withToken = "```sh\n" + `sluice() {
    case $1 in
    serve) exec sluice "$@" ;;
    render) command sluice "$@" ;;
    *) command sluice "$@" --ca /etc/sluice/ca-people.pem --token-file /etc/sluice/management.token ;;
    esac
}
` + "```\n\n"

var commandsOfCounters = regexp.MustCompile(`(?m)^    (sluice counters .*)$`)

// TestBlockedPageOnTheChart runs the page's commands, and those of docs/counters.md, with the serve
// of the chart.
func TestBlockedPageOnTheChart(t *testing.T) {
	t.Parallel()
	p := newPage(t, "")
	authority := certtest.Issue(nil, nil)
	ca, _ := certtest.PEM(authority)
	cert, key := certtest.PEM(certtest.Issue(authority, []string{"localhost", "edge-1"}))
	const token = "only-for-this-page"
	for name, text := range map[string]string{
		"ca-people.pem": ca, "ca-proxies.pem": ca, "ca-management.pem": ca, "control.pem": cert, "control.key": key,
		"node-names": "{id} {id}\n", "management.token": token,
		"access": fmt.Sprintf("token support admin %x\n", sha256.Sum256([]byte(token))),
	} {
		p.write(t, path.Join("etc/sluice", name), text, 0o600)
	}
	d := document(t, "docs/blocked.md")
	d.text = withToken + strings.NewReplacer(
		"XDS", "--xds control.example.com:18000 --xds-ca /etc/sluice/ca-people.pem --xds-cert /etc/sluice/control.pem "+
			"--xds-key /etc/sluice/control.key",
		"SERVE", "sluice "+serveOfChart(t)).Replace(blockedSetup) + d.text
	commands := commandsOfCounters.FindAllStringSubmatch(document(t, "docs/counters.md").text, -1)
	require.Len(t, commands, 2)
	d.text += "\n```sh\nsluice apply -f first.yaml\ncurl -s -H 'x-user-id: alice' http://127.0.0.1:10000/\n" +
		commands[0][1] + "\n" + commands[1][1] + "\n```\n"
	p.run(t, d, "SLUICE_SERVER="+p.rewrite.Replace("https://control.example.com:18080"))
}
