package hosttest

import (
	"fmt"
	"strconv"
	"strings"
)

// Tape makes choices out of the fuzzer's bytes.
type Tape []byte

// Next is the next byte, 0 at the end.
func (t *Tape) Next() int {
	if len(*t) == 0 {
		return 0
	}
	b := (*t)[0]
	*t = (*t)[1:]
	return int(b)
}

// Pick chooses one of several.
func Pick[T any](t *Tape, from ...T) T { return from[t.Next()%len(from)] }

// Hostile are texts that a client may send.
var Hostile = []string{
	"a", "b", "", "c", "\xff\xfe", "a\x00b", "é", strings.Repeat("k", 10_000), strings.Repeat("\xf0", 300),
	"/", "//", "/v1", "/v1/x?y=1", "v1", "/v1/a#b?c", "?", "*", "%2f..%2f", "api.example.com", "API.Example.Com:443",
	"/?q=1", "/?q=%ff&q&u=+", "/?u=%&y=1&y=2&=&&", "u=a; a=b", `u="a", u=b;;=`, "\x0a\x04\x0a\x00\x12\x00", "12345678",
	":", "[::1]:80", "[::1", ".example.com", "0", "1", "2", "-1", "99999999999999999999", "1,1", " 1", "a\t", " a ", "1e9",
	"0x1", "-",
}

// Rules writes a random policy's rules. Where some capacity is small, records
// are evicted, and only their limits can be seen from outside.
func (t *Tape) Rules(small bool) string {
	var rules []string
	for i := range 1 + t.Next()%3 {
		capacity := 65536
		if small {
			capacity = 1 + t.Next()%40
		}
		windows := t.windows()
		key := Pick(t, keys...)
		match, missing := Pick(t, matches...), Pick(t, "skip", "share", "deny")
		limits, cost := windows.limits(t, true), Pick(t, costs...)
		full := Pick(t, "inherit", "inherit", "allow", "deny")
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","key":[%s],"match":%s,"missing_key":%q,"limits":[%s],`+
			`"cost":%s,"capacity":%d,"on_full":%q,"on_contention":"deny"%s}`,
			i, key, match, missing, limits, cost, capacity, full, t.extras(key, windows)))
	}
	return strings.Join(rules, ",") + t.exempt()
}

var (
	keys = []string{
		`{"header":"u"}`, `{"header":"u"}`, ``, `{"header":"u"},"method"`, `"host"`, `{"path":"full"},{"header":"u"}`,
		`{"path":{"segment":2}}`, `{"client_ip":{}}`, `{"query":"q"}`, `{"cookie":"u"}`,
		`{"first_of":[{"header":"u"},{"query":"u"},{"cookie":"a"}]}`,
		`{"jwt":{"provider":"p","claim":["u","a"]}},"route"`,
		`{"property":["source","port"]},{"first_of":[{"property":["filter_state","k"]},"client_ip"]}`,
	}
	matches = []string{
		`{}`, `{}`, `{"methods":["GET"]}`, `{"hosts":["*.example.com"]}`, `{"paths":["/v1*","~/[a-z]*"]}`,
		`{"headers":{"u":"!"}}`, `{"headers":{"u":"*a"}}`, `{"client_ips":["192.0.2.7","2001:db8::/32"]}`,
		`{},"exempt":[{"paths":["/v1/*"]},{"methods":["POST"],"headers":{"c":"*"}}]`,
	}
	costs = []string{
		`1`, `2`, `{"header":"c"}`, `{"header":"c","min":0,"max":3}`, `{"header":"c","min":2,"default":3,"max":4}`,
		`{"query":"y","max":2}`,
		`[{"match":{"methods":["POST"]},"cost":3},{"match":{"headers":{"u":"a*"}},"cost":{"header":"c","max":3}},{"cost":2}]`,
	}
	algorithms = []string{
		"fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket",
	}
)

// exempt ends the list of rules and begins the policy's exemptions; mostly there are
// none.
func (t *Tape) exempt() string {
	return Pick(t, "", "", "", "", "", `],"exempt":[{"headers":{"u":"~a|c"}},{"methods":["POST"],"paths":["/v1*"]}`)
}

// windows are a rule's without their numbers.
type windows []string

func (t *Tape) windows() (list windows) {
	for i := range 1 + t.Next()%3 {
		algorithm := Pick(t, algorithms...)
		more := ""
		switch algorithm {
		case "fixed_window":
			more = Pick(t, "", "", `,"offset":"700ms"`, `,"jitter":50`, `,"jitter":100,"offset":"300ms"`)
		case "fixed_window_per_key":
			more = Pick(t, "", "", `,"elastic":true`)
		case "token_bucket":
			more = Pick(t, "", `,"burst":1`, `,"burst":7`)
		}
		list = append(list, fmt.Sprintf(`"per":%q,"algorithm":%q%s`, []string{"1s", "2500ms", "1m"}[i], algorithm, more))
	}
	return list
}

// limits gives windows numbers: all of them, of which requests may say some, or for an
// override some.
func (w windows) limits(t *Tape, all bool) string {
	var limits []string
	for i := range w {
		if all || i == 0 || t.Next()%3 > 0 {
			n := t.Next()
			requests := strconv.Itoa(n % 6)
			if all && n > 170 && !strings.Contains(w[i], "token_bucket") {
				requests = fmt.Sprintf(`{"header":"l","trusted":true,"default":%d,"max":%d}`, n%6, max(n%6, 1+n/6%6))
			}
			limits = append(limits, fmt.Sprintf(`{"requests":%s,%s}`, requests, w[i]))
		}
	}
	return strings.Join(limits, ",")
}

// extras writes the fields that not every rule can have.
func (t *Tape) extras(key string, w windows) string {
	out := Pick(t, "", "", `,"mode":"shadow"`, `,"enforce_percent":50`)
	if t.Next()%3 == 0 && !strings.Contains(strings.Join(w, ""), "token_bucket") {
		out += `,"count_denied":true`
	}
	out += Pick(t, "", "", "", `,"usage":false`)
	out += Pick(t, "", "", `,"block":"1s"`, `,"block":{"for":"7s","prolong":true}`)
	if key == `{"header":"u"}` && t.Next()%2 == 0 {
		pattern := Pick(t, "a", "*", "~[a-z]?")
		out += fmt.Sprintf(`,"overrides":[{"key":["=b"],"unlimited":true},{"name":"n","key":[%q],"limits":[%s]}]`,
			pattern, w.limits(t, false))
	}
	return out
}

// Request makes the next request and the instant at which it comes.
func (t *Tape) Request(p *Proxy, backwards bool) {
	p.With(":method", Pick(t, "GET", "GET", "POST", "\x00"))
	for _, name := range []string{"u", "c", "l", ":path", ":authority", "cookie"} {
		choice := t.Next()
		switch {
		case choice < 100:
		case choice > 250 && name[0] != ':':
			p.Headers[name] = []string{Pick(t, Hostile...), Pick(t, Hostile...)}
		case choice > 250:
			delete(p.Headers, name)
		default:
			p.Headers[name] = []string{Hostile[choice%len(Hostile)]}
		}
	}
	p.Attributes = map[string]string{}
	for _, path := range []string{"metadata", "xds.route_name", "source.port", "filter_state.k"} {
		if t.Next() > 128 {
			p.Attributes[path] = Pick(t, Hostile...)
		}
	}
	p.Client = Pick(t, "192.0.2.7:1", "192.0.2.8:1", "[2001:db8::1]:9", "/run/x", "", "x:y:z", "192.0.2.7")
	steps := []int64{0, 0, 0, 1, 1_000_000, 299_999_999, 1_000_000_000, 7_000_000_000, 60_000_000_000}
	if backwards {
		steps = append(steps, -1, -500_000_000, -9_000_000_000, -61_000_000_000, -4_000_000_000_000)
	}
	p.Clock += Pick(t, steps...)
}
