package importer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// nginxVariables are keys that maps make, one by another.
const nginxVariables = `
  geo $realm { default outside; 127.0.0.2 inside; 127.0.1.0/24 inside; 127.0.1.4 outside; }
  map $realm $by_realm { inside ""; outside $binary_remote_addr; }
  map $http_X_Plan $By_Plan { gold ""; ~^vip ""; "" $binary_remote_addr; trial trial; default $http_x_user; }
  map $http_x_plan $by_empty { "" ""; gold ""; default $binary_remote_addr; }
  map $http_x_plan $by_vip { ~^(vip.*)?$ ""; ~^$ $host; default $binary_remote_addr; }
  map $host $by_host { hostnames; default $http_x_user; *.b.example ""; a.example $host; }
  map $host $by_name { hostnames; *.b.example $remote_addr; x.b.example ""; *.x.b.example $http_x_user; }
  map $http_x_plan $site { gold x.b.example; trial b.example; default 127.0.1.9; }
  map $site $by_site { hostnames; *.b.example ""; b.example $http_x_user; default $binary_remote_addr; }
  geo $site $by_network { default far; 127.0.0.0/16 near; 127.0.1.0/24 ""; }
`

// nginxConfiguration is a random configuration of nginx. Each zone has one burst, because nginx
// counts all requests of a zone together; see the note of the import.
type nginxConfiguration struct {
	*rand.Rand
	text     strings.Builder
	address  string
	isTrying bool // has limit_req_dry_run, and only one zone; see the note of the import
}

var nginxKeys = []string{
	"$binary_remote_addr", "$remote_addr", "$http_x_user", "$arg_user", "$cookie_sid", "$host", `"$host:$http_x_user"`,
	"$uri", `"${request_method}$remote_addr"`, "$by_realm", "$by_plan", "$by_host", "everyone",
	"$by_name", "$by_name", "$by_empty", "$by_vip", "$by_site", "$by_network",
	"u:$cookie_sid", "$http_x_user:$arg_user",
}

// zones writes the zones.
func (c *nginxConfiguration) zones() {
	for zone := range 3 {
		fmt.Fprintf(&c.text, "  limit_req_zone %s zone=z%d:1m rate=1r/m;\n", nginxKeys[c.IntN(len(nginxKeys))], zone)
	}
}

// limits writes limits, or none.
func (c *nginxConfiguration) limits(indent string) {
	bursts := []string{" burst=1 delay=1", " burst=2 nodelay", ""}
	if c.isTrying {
		bursts = bursts[:1]
	}
	for zone, burst := range bursts {
		if c.IntN(4) == 0 {
			fmt.Fprintf(&c.text, "%slimit_req zone=z%d%s;\n", indent, zone, burst)
		}
	}
	if c.IntN(5) == 0 {
		fmt.Fprintf(&c.text, "%slimit_req_status %d;\n", indent, 429+c.IntN(2)*20)
	}
	if c.isTrying && c.IntN(3) == 0 {
		fmt.Fprintf(&c.text, "%slimit_req_dry_run on;\n", indent)
	}
}

// nginxLocations are locations with others within them. Beside a ^~ / nginx tries the expressions only in a hole.
var (
	nginxLocations = []string{"/", "/a", "/a/b", "= /a", "^~ /s/", `~ x$`, `~* ^/A/|\.php`, "/s/t"}
	besideAll      = []string{"^~ /", "/s/t", "= /a", "^~ /s/", `~ x$`}
)

// haveHole reports whether an expression of these locations holds in a hole of one with ^~: its rule would be off.
func haveHole(locations []string) bool {
	begins := func(with string) bool {
		return slices.ContainsFunc(locations, func(l string) bool { return strings.HasPrefix(l, with) })
	}
	return begins("^~") && begins("~") && begins("/s/t")
}

// server writes a server with random locations.
func (c *nginxConfiguration) server(names string) {
	fmt.Fprintf(&c.text, "  server {\n    listen %s; server_name %s;\n", c.address, names)
	c.limits("    ")
	locations := nginxLocations
	if c.IntN(4) == 0 {
		locations = besideAll
	}
	var written []string
	for _, location := range locations {
		if c.IntN(2) == 0 || haveHole(append(slices.Clip(written), location)) {
			continue
		}
		written = append(written, location)
		answer := "try_files $uri =204"
		if location == "/a" && c.IntN(3) == 0 {
			answer = "return 204" // before limits, but not for the location in it
		}
		fmt.Fprintf(&c.text, "    location %s {\n      %s;\n", location, answer)
		c.limits("      ")
		if location == "/a" && c.IntN(2) == 0 {
			c.text.WriteString("      location /a/inner {\n        try_files $uri =204;\n")
			c.limits("        ")
			c.text.WriteString("      }\n")
		}
		c.text.WriteString("    }\n")
	}
	c.text.WriteString("    try_files $uri =204;\n  }\n")
}

// nginxRequest is a request to nginx, and to the filter.
type nginxRequest struct {
	AtMs     int               `json:"at_ms"`
	ClientIP string            `json:"client_ip"`
	Method   string            `json:"method"`
	Host     string            `json:"host"`
	Path     string            `json:"path"`
	Headers  map[string]string `json:"headers"`
}

// oneOf is one of some words.
func oneOf(r *rand.Rand, words string) string {
	list := strings.Fields(words)
	return list[r.IntN(len(list))]
}

func randomRequest(r *rand.Rand) nginxRequest {
	q := nginxRequest{
		ClientIP: oneOf(r, "127.0.0.2 127.0.0.3 127.0.1.3 127.0.1.4"), Method: oneOf(r, "GET POST"),
		Host:    oneOf(r, "a.example b.example x.b.example y.x.b.example other.example"),
		Path:    oneOf(r, "/ /a /a/b /a/bx /a/inner /ax /s/x /s/t/x /s/t /a/y.php /other"),
		Headers: map[string]string{},
	}
	if user := oneOf(r, "- u1 u2"); user != "-" {
		q.Path += "?user=" + user
	}
	for _, header := range [][2]string{
		{"x-user", "- u1 u2"}, {"x-plan", `- "" gold GOLD trial vip1 free`}, {"cookie", "- sid=1 sid=2"},
	} {
		if value := oneOf(r, header[1]); value != "-" {
			q.Headers[header[0]] = strings.Trim(value, `"`)
		}
	}
	return q
}

// statusOf is the status that a server answers with.
func (q nginxRequest) statusOf(t *testing.T, address string) int {
	t.Helper()
	asked, err := http.NewRequestWithContext(t.Context(), q.Method, "http://"+address+q.Path, nil)
	require.NoError(t, err)
	asked.Host = q.Host
	for name, value := range q.Headers {
		asked.Header.Set(name, value)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(q.ClientIP)}}
	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	answer, err := client.Do(asked)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer.StatusCode
}

// For random configurations, nginx and the filter with the imported policy answer 500 requests alike.
// nginx decides by its own clock: at one request a minute, bursts decide, however fast the requests
// come. The filter gets the times at which they were sent, in case that they take minutes.
func TestDecidesAsNginx(t *testing.T) {
	const configurations, requests = 20, 25
	wasm := buildtest.Wasm(t)
	denied := 0
	for seed := range uint64(configurations) {
		free, err := ports.Free(1)
		require.NoError(t, err)
		c := &nginxConfiguration{Rand: rand.New(rand.NewPCG(seed, 11)), address: fmt.Sprint("127.0.0.1:", free[0])}
		c.isTrying = seed%5 == 0
		c.text.WriteString("  access_log off;\n  limit_req_log_level info;\n" + nginxVariables)
		c.zones()
		c.limits("  ")
		servers := []string{"a.example", ".b.example", "x.b.example"}
		if seed%2 == 1 {
			slices.Reverse(servers) // the default server has a name that a wildcard of another one has too
		}
		for _, names := range servers {
			c.server(names)
		}
		servertest.Nginx(t, c.address, c.text.String())
		file := importer.File{Name: "nginx.conf", Text: []byte(c.text.String())}
		made, err := importer.Nginx([]importer.File{file}, policy.ScopeProxy, nil)
		if errors.Is(err, importer.ErrNothing) {
			made.Policy, err = []byte("version: 1\nrules: []\n"), nil
		}
		require.NoError(t, err, c.text.String())
		require.NotContains(t, string(made.Policy), `mode: "off"`)
		var asked bytes.Buffer
		var want []int
		begin := time.Now()
		for range requests {
			q := randomRequest(c.Rand)
			q.AtMs = 1000 + int(time.Since(begin).Milliseconds())
			line, err := json.Marshal(q)
			require.NoError(t, err)
			asked.Write(append(line, '\n'))
			status := q.statusOf(t, c.address)
			if status == http.StatusNoContent {
				status = http.StatusOK
			} else {
				denied++
			}
			want = append(want, status)
		}
		lines := strings.SplitAfter(asked.String(), "\n")
		for i, status := range statuses(t, wasm, made.Policy, &asked) {
			require.Equal(t, want[i], status, "request %d after these:\n%s%s\n%s", i, lines[:i+1], c.text.String(), made.Policy)
		}
	}
	require.Greater(t, denied, configurations*requests/10)
}

// statuses are the statuses that the filter answers with; 200 if it lets a request pass.
func statuses(t *testing.T, wasm, policy []byte, requests *bytes.Buffer) (list []int) {
	t.Helper()
	for lines := simulated(t, wasm, policy, requests); lines.Scan(); {
		var answer struct{ Status int }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &answer))
		list = append(list, answer.Status)
	}
	return list
}

// While two requests of an address run, nginx and the filter deny a third one.
func TestConcurrencyAsInNginx(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-finish
	}))
	defer upstream.Close()
	free, err := ports.Free(1)
	require.NoError(t, err)
	address := fmt.Sprint("127.0.0.1:", free[0])
	text := fmt.Sprintf("  access_log off;\n  limit_conn_zone $binary_remote_addr zone=c:1m;\n"+
		"  server { listen %s; limit_conn c 2; location / { proxy_pass %s; } }\n", address, upstream.URL)
	servertest.Nginx(t, address, text)
	var running sync.WaitGroup
	q := nginxRequest{AtMs: 1000, ClientIP: "127.0.0.2", Method: "GET", Host: "a.example", Path: "/"}
	for range 2 {
		running.Go(func() { q.statusOf(t, address) })
		<-arrived
	}
	status := q.statusOf(t, address)
	close(finish)
	running.Wait()

	made, err := importer.Nginx([]importer.File{{Name: "nginx.conf", Text: []byte(text)}}, policy.ScopeProxy, nil)
	require.NoError(t, err)
	line, err := json.Marshal(q)
	require.NoError(t, err)
	asked := bytes.NewBufferString(strings.Repeat(string(line)+"\n", 3))
	require.Equal(t, []int{200, 200, status}, statuses(t, buildtest.Wasm(t), made.Policy, asked), string(made.Policy))
	require.Equal(t, http.StatusServiceUnavailable, status)
}
