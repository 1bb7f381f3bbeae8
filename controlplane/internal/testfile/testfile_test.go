package testfile

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
)

var update = flag.Bool("update", false, "write what the files with mistakes give")

// folder has the policies that files of tests name here.
func folder(tb testing.TB) func(name string) ([]byte, error) {
	tb.Helper()
	policy, err := os.ReadFile("testdata/policy.yaml")
	require.NoError(tb, err)
	files := fstest.MapFS{
		"policy.yaml": {Data: policy},
		"bad.yaml":    {Data: []byte("version: 1\nrulez: []\n")},
		"slots.yaml":  {Data: []byte("{version: 1, rules: [{name: slots, algorithm: concurrency, limits: [2]}]}")},
	}
	return func(name string) ([]byte, error) { return fs.ReadFile(files, name) }
}

func TestBadFiles(t *testing.T) {
	open := folder(t)
	buildtest.Archives(t, "testdata/bad.txtar", *update, func(files []txtar.File) {
		for i := 0; i < len(files); i += 2 {
			name := files[i].Name
			_, err := parse(name, files[i].Data, open)
			require.Error(t, err, name)
			require.Equal(t, strings.TrimSuffix(name, ".yaml")+".txt", files[i+1].Name)
			files[i+1].Data = []byte(err.Error() + "\n")
		}
	})
}

// A check compares a number by its value, not by how the file writes it.
func TestNumbersAreComparedByTheirValue(t *testing.T) {
	const text = `
version: 1
policy: policy.yaml
tests: [{name: a, steps: [{counter: {rule: all}, expect: {used: 1e3, remaining: 1e3, held: 1e3, leased: 1e3}}]}]
`
	file, err := parse("a.test.yaml", []byte(text), folder(t))
	require.NoError(t, err)
	checks := file.Tests[0].steps[0].expect.count
	require.Len(t, checks, 4)
	for _, c := range checks {
		seen, ok := c.see(&policytest.Count{Used: 1000, Remaining: 1000, Held: 1000, Leased: 1000})
		require.True(t, ok, "%s: expected %s, seen %s", c.field, c.expected, seen)
	}
}

// A message about a field that no counter has lists those that it has.
func TestTheFieldsOfACounterAreListed(t *testing.T) {
	var names []string
	for _, row := range expectRows {
		if row.kinds&ofCounter != 0 {
			names = append(names, row.name)
		}
	}
	require.ElementsMatch(t, names, strings.Split(strings.ReplaceAll(wordsOfCounter, " or ", ", "), ", "))
}

// A message about a wrong value says what would be right, so package message knows the form of each field.
func TestEachFormHasASentence(t *testing.T) {
	objects, _ := Schema()
	for _, o := range objects {
		for _, f := range o.Fields {
			require.NotContains(t, []string{"", "an object", "a list"}, message.Shape(f.Shape), o.Name+"."+f.Name)
		}
	}
}

// Whatever a file holds, it can be run or each problem has a place and a sentence.
func FuzzParse(f *testing.F) {
	all, err := txtar.ParseFile("testdata/bad.txtar")
	require.NoError(f, err)
	for _, file := range all.Files {
		f.Add(file.Data)
	}
	f.Add([]byte(passing))
	open := folder(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := parse("a.test.yaml", text, open)
		if err == nil {
			require.NotEmpty(t, file.Tests)
			for i := range file.Tests {
				require.NotEmpty(t, file.Tests[i].steps)
			}
			return
		}
		var problems policyfile.Errors
		require.ErrorAs(t, err, &problems)
		for _, p := range problems {
			require.NotEmpty(t, p.File)
			require.NotEmpty(t, p.Message)
		}
	})
}

const passing = `
version: 1
policy: policy.yaml
proxies: 2
start: 2026-01-31T12:00:00Z
request: {headers: {x-user-id: alice, x-gone: a}}
tests:
  - name: windows and overrides
    request: {path: /v1/orders, headers: {x-gone: []}}
    steps:
      - {proxy: 0, times: 2, expect: {allowed: true, status: 200}, last: {rules: {per-user: {remaining: 0}}}}
      - {proxy: 0, expect: {denied_by: per-user, reason: limit, retry_after: 1m, headers: {retry-after: "60"}}}
      - counter: {rule: per-user, key: [alice]}
        proxy: 0
        expect: {remaining: 0, windows: {daily: {used: 2}, "0": {limit: 2}}}
      - {set: {rule: per-user, key: [alice], units: 10, window: daily}, proxy: 0}
      - {after: 1m, proxy: 0, expect: {allowed: false, retry_after: 11h59m}}
      - {reset: {rule: per-user, key: [alice]}, proxy: 0}
      - {proxy: 0, expect: {allowed: true}}
      - request: {headers: {x-user-id: gold-a}}
        expect: {matched: [per-user], rules: {per-user: {override: gold, remaining: 19, mode: enforced}}}
  - name: a shadow rule denies nothing
    request: {path: /watched}
    steps: [{expect: {allowed: true, rules: {watched: {allowed: false, mode: shadow, reason: limit}}}}]
  - name: without the quota service
    request: {path: /all}
    steps:
      - {fail: quota, expect: {allowed: true}}
      - {after: 10s, counter: {rule: all}, expect: {used: 0}}
  - name: how an answer ends
    request: {method: POST, path: /login, client_ip: 192.0.2.7, body: user=a}
    steps:
      - proxy: 0
        answer: {status: 401, took: 1s, headers: {a: [b, c]}}
        expect: {held: 1, charged: 1, by: cost, headers: {a: c}}
      - {proxy: 0, answer: {status: 200, body: text}, expect: {held: 1, charged: 0, body: te*, by: none}}
      - {proxy: 0, running: one}
      - {answer: {to: one, no_answer: timeout}, expect: {status: 504, charged: 1}}
      - {proxy: 0, expect: {allowed: false, reason: limit}}
  - name: a block
    request: {path: /scan, client_ip: 192.0.2.7}
    steps:
      - {proxy: 0, times: 3, last: {reason: blocked, retry_after: 1h}}
      - {after: 1m, proxy: 0, counter: {rule: scan, key: [192.0.2.7]}, expect: {blocked: 59m, used: 0}}
      - {proxy: 0, reset: {rule: scan, key: [192.0.2.7]}}
      - {proxy: 0, counter: {rule: scan, key: [192.0.2.7]}, expect: {blocked: 0s}}
`

// ended keeps what came of each test.
type ended struct{ failures map[string][]string }

func (e *ended) Test(_ string, r *Result) error {
	for i := range r.Failures {
		e.failures[r.Name] = append(e.failures[r.Name], r.Failures[i].String())
	}
	return nil
}

func (e *ended) File(*Outcome) error { return nil }

func runText(t *testing.T, text string) (*Outcome, map[string][]string) {
	t.Helper()
	file, err := parse("a.test.yaml", []byte(text), folder(t))
	require.NoError(t, err)
	e := &ended{map[string][]string{}}
	o, err := file.Run(t.Context(), Options{Wasm: buildtest.Wasm(t), CacheDir: buildtest.CacheDir()}, e)
	require.NoError(t, err)
	return o, e.failures
}

func TestExpectationsThatHold(t *testing.T) {
	o, failures := runText(t, passing)
	require.Empty(t, failures)
	require.Len(t, o.Results, 5)
}

const ratelimitSeen = `"\"per-user/0\";r=1;t=60, \"per-user/daily\";r=9;t=86400"`

// wrong are steps that fail. Each field of expect is wrong in one of them, so none is read and then ignored.
var wrong = []struct{ step, want string }{
	{`expect: {allowed: false}`, "allowed: expected false, seen true"},
	{`expect: {status: 429}`, "status: expected 429, seen 200"},
	{`expect: {denied_by: login}`, "denied_by: expected login, seen none"},
	{`expect: {reason: held}`, "reason: expected held, seen none"},
	{`expect: {retry_after: 1s}`, "retry_after: expected 1s, seen none"},
	{`expect: {headers: {ratelimit: a*}}`, `headers.ratelimit: expected "a*", seen ` + ratelimitSeen},
	{`expect: {headers: {x-none: "*"}}`, `headers.x-none: expected "*", seen none`},
	{`expect: {headers: {ratelimit: "!"}}`, `headers.ratelimit: expected "!", seen ` + ratelimitSeen},
	{`expect: {body: "~[a-z]+"}`, `body: expected "~[a-z]+", seen ""`},
	{`expect: {matched: [all]}`, "matched: expected [all], seen [per-user]"},
	{`expect: {remaining: 2}`, "remaining: expected 2, seen 1"},
	{`expect: {held: 1}`, "held: expected 1, seen none"},
	{`expect: {charged: 1}`, "charged: expected 1, seen none"},
	{`expect: {by: answer}`, "by: expected answer, seen none"},
	{`expect: {rules: {all: {remaining: 1}}}`, "rules.all.remaining: expected 1, seen no match of the rule"},
	{`expect: {rules: {all: {}}}`, "rules.all: expected a match of the rule, seen no match of the rule"},
	{`after: 106751d`, "advance by 2562024h0m0s: the clock would pass the year 2200"},
	{`answer: {took: 106751d}`, "advance by 2562024h0m0s: the clock would pass the year 2200"},
	{`expect: {rules: {per-user: {allowed: false}}}`, "rules.per-user.allowed: expected false, seen true"},
	{`expect: {rules: {per-user: {mode: shadow}}}`, "rules.per-user.mode: expected shadow, seen enforced"},
	{`expect: {rules: {per-user: {override: gold}}}`, "rules.per-user.override: expected gold, seen none"},
	{`expect: {rules: {per-user: {reason: limit}}}`, "rules.per-user.reason: expected limit, seen none"},
	{`expect: {rules: {per-user: {held: 1}}}`, "rules.per-user.held: expected 1, seen none"},
	{`expect: {rules: {per-user: {charged: 1}}}`, "rules.per-user.charged: expected 1, seen none"},
	{`expect: {rules: {per-user: {by: answer}}}`, "rules.per-user.by: expected answer, seen none"},
	{`last: {status: 201}`, "status: expected 201, seen 200"},
	{`counter: {rule: all}, expect: {used: 1}`, "used: expected 1, seen 0"},
	{`counter: {rule: all}, expect: {leased: 1}`, "leased: expected 1, seen 0"},
	{`counter: {rule: scan, key: [192.0.2.7]}, expect: {blocked: 1s}`, "blocked: expected 1s, seen 0s"},
	{`counter: {rule: all}, expect: {remaining: 1}`, "remaining: expected 1, seen 3"},
	{`counter: {rule: all}, expect: {held: 1}`, "held: expected 1, seen 0"},
	{`counter: {rule: all}, expect: {windows: {"0": {used: 1}}}`, "windows.0.used: expected 1, seen 0"},
	{`counter: {rule: all}, expect: {windows: {"0": {remaining: 1}}}`, "windows.0.remaining: expected 1, seen 3"},
	{`counter: {rule: all}, expect: {windows: {"0": {limit: 1}}}`, "windows.0.limit: expected 1, seen 3"},
}

func TestEachExpectationFails(t *testing.T) {
	head := "version: 1\npolicy: policy.yaml\nrequest: {headers: {x-user-id: alice}}\ntests:\n"
	for _, c := range wrong {
		_, failures := runText(t, head+"  - {name: a, request: {path: /v1/a}, steps: [{"+c.step+"}]}\n")
		require.Equal(t, map[string][]string{"a": {"step 1: " + c.want}}, failures, c.step)
	}
}

func TestEachFieldOfExpectIsWrongOnce(t *testing.T) {
	var fields []string // as "request headers", "request rules.held" or "counter windows.used"
	for _, row := range expectRows {
		if row.kinds&ofRequest != 0 {
			fields = append(fields, "request "+row.name)
		}
		if row.kinds&ofCounter != 0 && row.name != "windows" { // which has no check but those of its fields
			fields = append(fields, "counter "+row.name)
		}
	}
	for _, f := range ruleObject.fields {
		fields = append(fields, "request rules."+f.name)
	}
	for _, f := range windowObject.fields {
		fields = append(fields, "counter windows."+f.name)
	}
	var failing []string
	for _, c := range wrong {
		of := "request "
		if strings.HasPrefix(c.step, "counter: ") {
			of = "counter "
		}
		path, _, _ := strings.Cut(c.want, ": ")
		names := strings.Split(path, ".")
		if len(names) == 3 {
			failing = append(failing, of+names[0]+"."+names[2]) // names[1] is the rule or the window
		} else {
			failing = append(failing, of+names[0])
		}
	}
	require.Subset(t, failing, fields)
}

// What CI systems read of it is what they are told: names, times, counts and messages.
func TestJUnitXML(t *testing.T) {
	outcomes := []*Outcome{{Name: "a<b>.test.yaml", Results: []*Result{
		{Name: "passes", Line: 3},
		{Name: "says \"]]>\" and \x1b", Line: 5, Log: []string{"filter: &"}, Failures: []Failure{
			{Place: Place{Line: 7, Step: 1}, Field: "status", Expected: "429", Seen: "200"},
			{Place: Place{Line: 8, Step: 2, Request: 3, Times: 4}, Seen: "not\xffUTF-8"},
		}},
	}}}
	var b bytes.Buffer
	require.NoError(t, WriteJUnit(&b, outcomes))
	var read junitSuites
	d := xml.NewDecoder(&b)
	d.Strict = true
	require.NoError(t, d.Decode(&read))
	require.Equal(t, []int{2, 1, 0}, []int{read.Tests, read.Failures, read.Errors})
	cases := read.Suites[0].Cases
	require.Equal(t, "a<b>.test.yaml", read.Suites[0].Name)
	require.Nil(t, cases[0].Failure)
	require.Equal(t, "says \"]]>\" and \uFFFD", cases[1].Name)
	require.Equal(t, "step 1: status: expected 429, seen 200", cases[1].Failure.Message)
	require.Equal(t, "a<b>.test.yaml:7: step 1: status: expected 429, seen 200\n"+
		"a<b>.test.yaml:8: step 2, request 3 of 4: not\uFFFDUTF-8", cases[1].Failure.Text)
	require.Equal(t, "filter: &", cases[1].Output)
}

func TestJSONIsOneLineATest(t *testing.T) {
	var b bytes.Buffer
	j := JSON{&b}
	r := &Result{Name: "a", Failures: []Failure{{Place: Place{Line: 2, Step: 1}, Seen: "x\ny"}}}
	require.NoError(t, j.Test("a.test.yaml", r))
	require.NoError(t, j.File(&Outcome{Name: "a.test.yaml", Results: []*Result{r}}))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		require.True(t, json.Valid([]byte(line)), line)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.test.yaml", "a/c.test.yaml", ".git/d.test.yaml", "policy.yaml", ".test.yaml"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	names, err := Find(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "a/c.test.yaml"), filepath.Join(dir, "b.test.yaml")}, names)
}
