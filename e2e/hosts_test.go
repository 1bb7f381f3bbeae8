package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

var updateHosts = flag.Bool("update-hosts", false, "write what is seen of hosts into testdata/hosts.txt")

// hostTable has a line for each spelling of a host. It begins with what the client sends
// as Host and :authority; a second name behind " + " is sent as a header host beside
// it, and "GET " is in front of a request line's target. For HTTP/1.1 and HTTP/2 the
// line then has a word for each of the hostModes.
const hostTable = "testdata/hosts.txt"

// hostModes are what an Envoy may be told about hosts.
var hostModes = []struct{ manager, routes string }{
	{},
	{routes: "ignore_port_in_host_matching: true"},
	{manager: "strip_any_host_port: true"},
	{manager: "{strip_any_host_port: true, strip_trailing_host_dot: true}"},
}

// units are so many that none of the spellings uses them up.
const units = 1_000_000

// hostPolicy counts each mode's keys for itself.
var hostPolicy = `
version: 1
headers: x-ratelimit
rules:
  - {name: api, match: {hosts: [api.example.com]}, limits: [0/` + far + `], mode: shadow}
  - {name: shop, match: {hosts: ["*.shop.example"]}, limits: [0/` + far + `], mode: shadow}
  - {name: by-host, key: [host, {header: x-mode}], limits: [` + fmt.Sprint(units) + `/` + far + `]}
`

const hostRoutes = `
virtual_hosts:
- name: api
  domains: [api.example.com]
  routes: &routes
  - {match: {prefix: /, headers: [{name: x-upstream, string_match: {exact: nginx}}]}, route: {cluster: nginx}}
  - {match: {prefix: /}, route: {cluster: upstream}}
  response_headers_to_add:
  - {header: {key: x-routed, value: api}}
  - &seen {header: {key: x-seen, value: "%FILTER_STATE(wasm.sluice.verdict:PLAIN)%"}}
- {name: shop, domains: ["*.shop.example"], routes: *routes,
   response_headers_to_add: [{header: {key: x-routed, value: shop}}, *seen]}
- {name: others, domains: ["*"], routes: *routes,
   response_headers_to_add: [{header: {key: x-routed, value: others}}, *seen]}
`

// Whatever an Envoy, nginx or Go's ServeMux takes for a host, the rule for that host
// judges, and no two spellings that they take for one are two keys.
func TestHosts(t *testing.T) {
	t.Parallel()
	text := read(t, hostTable)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	spellings := make([]string, len(lines))
	for i, line := range lines {
		quoted, err := strconv.QuotedPrefix(line)
		require.NoError(t, err, line)
		spellings[i], err = strconv.Unquote(quoted)
		require.NoError(t, err, line)
	}
	everyEnvoy(t, func(t *testing.T, d driver) {
		addresses := startHosts(t, d)
		modes := len(hostModes)
		columns := make([][]string, 2*modes) // all modes over HTTP/1.1, then all over HTTP/2; a word for each spelling
		atOnce(len(columns), func(i int) {
			m := &hostMode{proxy: proxy{address: addresses[i%modes]}, name: fmt.Sprint(i), http2: i >= modes,
				counted: map[string]int{"api": units}}
			for _, spelling := range spellings {
				columns[i] = append(columns[i], m.taken(t, spelling))
			}
		})
		var out strings.Builder
		for row, spelling := range spellings {
			line := fmt.Sprintf("%-45q", spelling)
			for i, words := range columns {
				if i == modes {
					line += " |"
				}
				line += fmt.Sprintf(" %-6s", words[row])
			}
			out.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		if *updateHosts {
			require.NoError(t, os.WriteFile(hostTable, []byte(out.String()), 0o600))
		}
		require.Equal(t, text, out.String())
	})
}

// hostMode is a way to send spellings: to one listener, by one version of HTTP.
type hostMode struct {
	proxy

	name    string
	http2   bool
	counted map[string]int // by what servers take a host for: what remained to its key
}

// taken is what becomes of a spelling: "-" if Envoy refuses it, else "." and a letter for
// each that takes it for api.example.com, or for one below shop.example: E Envoy, G Go, N
// nginx, M the rule's match. K stands where the key is that of api.example.com.
func (m *hostMode) taken(t *testing.T, spelling string) string {
	host, word := "api", "."
	if strings.Contains(strings.ToLower(spelling), "shop") {
		host = "shop"
	}
	goes, nginx := m.send(t, spelling, "go"), m.send(t, spelling, "nginx")
	if goes.Get("x-routed") == "" {
		return "-"
	}
	for _, taken := range [][2]string{{"E", goes.Get("x-routed")}, {"G", goes.Get("x-taken")},
		{"N", nginx.Get("x-taken")}} {
		if taken[1] == host {
			word += taken[0]
		}
	}
	first, last := remainingOf(t, goes), remainingOf(t, nginx)
	require.Equal(t, first-1, last, spelling)
	var same []string // what counted this host before, if it did
	if word != "." && host == "api" {
		same = append(same, host)
	}
	if name := nginx.Get("x-name"); name != "" {
		same = append(same, "nginx "+name)
	}
	isAPI := first == m.counted["api"]-1
	for _, name := range same {
		if before, found := m.counted[name]; found {
			require.Less(t, first, before, "%q is another key of %s", spelling, name)
		}
		m.counted[name] = last
	}
	if isAPI {
		m.counted["api"] = last
	}
	isMatch := strings.Contains(goes.Get("x-seen"), host+"=shadow_denied")
	require.True(t, isMatch || word == ".", "%q slips past the rule: %s", spelling, word)
	if isMatch {
		word += "M"
	}
	if isAPI {
		word += "K"
	}
	return word
}

func remainingOf(t *testing.T, h http.Header) int {
	n, err := strconv.Atoi(h.Get("x-ratelimit-remaining"))
	require.NoError(t, err)
	return n
}

// send returns the header of the response, nothing if there is none.
func (m *hostMode) send(t *testing.T, spelling, upstream string) http.Header {
	target := "/"
	host, beside, both := strings.Cut(spelling, " + ")
	if absolute, found := strings.CutPrefix(spelling, "GET "); found {
		target, host = absolute, "third.example"
	}
	if !m.http2 {
		lines := []string{"host: " + host, "x-upstream: " + upstream, "x-mode: " + m.name}
		if both {
			lines = append(lines, "host: "+beside)
		}
		return m.raw(t, http.MethodGet, target, lines...).Header
	}
	if target != "/" {
		return nil // HTTP/2 has no such target
	}
	fields := []string{":method", "GET", ":scheme", "http", ":path", "/", "x-upstream", upstream, "x-mode", m.name}
	if host != "" || !both {
		fields = append([]string{":authority", host}, fields...)
	}
	if both {
		fields = append(fields, "host", beside)
	}
	return m.raw2(t, fields...)
}

// raw2 sends a request of exactly these fields over HTTP/2, and returns the header of the
// response, nothing where the proxy answers by closing.
func (p *proxy) raw2(t *testing.T, fields ...string) http.Header {
	c, err := net.Dial("tcp", p.address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = c.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	require.NoError(t, framer.WriteSettings())
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(),
		EndStream: true, EndHeaders: true}))
	header := http.Header{}
	for {
		frame, err := framer.ReadFrame()
		if _, reset := frame.(*http2.RSTStreamFrame); reset || err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			return header
		}
		if response, ok := frame.(*http2.MetaHeadersFrame); ok {
			for _, field := range response.Fields {
				header.Add(field.Name, field.Value)
			}
			return header
		}
	}
}

// startHosts starts an Envoy with a listener for each of the hostModes, in front of a Go
// server and an nginx that say what they take a host for.
func startHosts(t *testing.T, d driver) (addresses []string) {
	mux := http.NewServeMux()
	for host, name := range map[string]string{"api.example.com": "api", "a.shop.example": "shop", "": "others"} {
		mux.HandleFunc(host+"/", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("x-taken", name) })
	}
	goServer := httptest.NewServer(mux)
	t.Cleanup(goServer.Close)
	nginx := freeAddress(t)
	servers := ""
	for _, s := range []string{"_ others", "api.example.com api", "*.shop.example shop"} {
		host, name, _ := strings.Cut(s, " ")
		servers += fmt.Sprintf("server { listen %s; server_name %s; add_header x-taken %s; add_header x-name $host; "+
			"location / { return 200; } }\n", nginx, host, name)
	}
	servertest.Nginx(t, nginx, "access_log off;\n"+servers)
	p := d.start(t, proxyOptions{policy: hostPolicy, upstream: goServer.URL, workers: 2,
		edit: func(bootstrap []byte) []byte {
			return edited(t, bootstrap, func(static object) {
				listener, clusters := string(marshaled(t, listenersOf(static)[0])), static["clusters"].([]any)
				for i, mode := range hostModes {
					another := unmarshaled(t, listener)
					manager := managerOf(another)
					manager["delayed_close_timeout"] = "0.01s" // of a refused request over HTTP/2
					manager["route_config"] = unmarshaled(t, hostRoutes+mode.routes)
					maps.Copy(manager, unmarshaled(t, mode.manager))
					another["name"] = fmt.Sprint("mode-", i)
					static["listeners"] = append(listenersOf(static), another)
				}
				_, port, _ := strings.Cut(goServer.Listener.Addr().String(), ":")
				_, nginxPort, _ := strings.Cut(nginx, ":")
				static["clusters"] = append(clusters,
					unmarshaled(t, strings.NewReplacer("upstream", "nginx", port,
						nginxPort).Replace(string(marshaled(t, clusters[0])))))
			})
		}})
	for i := range hostModes {
		address, err := p.envoy.Listener(t.Context(), fmt.Sprint("mode-", i))
		require.NoError(t, err)
		addresses = append(addresses, address)
	}
	return addresses
}
