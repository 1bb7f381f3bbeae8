package policyfile_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// asReader makes the test binary a program that reads the policy on its standard
// input, and prints what is wrong.
const asReader = "SLUICE_TEST_READS_POLICY"

func TestMain(m *testing.M) {
	if os.Getenv(asReader) == "" {
		os.Exit(m.Run())
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	_, _, _, err = policyfile.Read("policy.yaml", text)
	if err != nil {
		fmt.Println(err.Error()[:min(200, len(err.Error()))])
	}
	proctest.SaveStatus()
}

// filled is a list of nearly as many items as fit into a policy, between before
// and after.
func filled(before, after string, item func(i int) string) string {
	var b strings.Builder
	b.WriteString(before)
	for i := 0; ; i++ {
		next := item(i)
		if b.Len()+len(next)+len(after)+400 > policy.MaxBytes {
			return b.String() + after
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(next)
	}
}

func filledf(before, after, item string) string {
	return filled(before, after, func(i int) string {
		if strings.Contains(item, "%") {
			return fmt.Sprintf(item, i)
		}
		return item
	})
}

func paths(item string) string {
	return filledf(`{"version":1,"rules":[{"name":"r","limits":["1/1s"],"match":{"paths":[`, `]}}]}`, item)
}

func rules(item string) string { return filledf(`{"version":1,"rules":[`, `]}`, item) }

func overrides(key, pattern string) string {
	return filled(`{"version":1,"rules":[`, `]}`, func(i int) string {
		var list []string
		for j := range policy.MaxOverrides / 2 {
			list = append(list, fmt.Sprintf(`{"key":[`+pattern+`],"unlimited":true}`, j))
		}
		head := fmt.Sprintf(`{"name":"r%d","key":[`+key+`],"limits":["1/1s"],"capacity":1,"overrides":[`, i)
		return head + strings.Join(list, ",") + `]}`
	})
}

// exempting is a rule half of whose text is a match, and half an exempt that covers it in
// reverse order.
func exempting(condition, opens, item, closes string) string {
	const room = policy.MaxBytes/2 - 200
	var wanted, exempt []string
	for n := 0; n < room; n += len(wanted[0]) + 1 {
		wanted = append(wanted, fmt.Sprintf(item, 100_000+len(wanted)))
	}
	exempt = slices.Clone(wanted)
	slices.Reverse(exempt)
	list := func(items []string) string { return opens + strings.Join(items, ",") + closes }
	return `{"version":1,"rules":[{"name":"r","limits":["1/1s"],"match":{"` + condition + `":` + list(wanted) +
		`},"exempt":[{"` + condition + `":` + list(exempt) + `}]}]}`
}

// Parts of hostile policies.
var (
	tiny      = `,"limits":["1/1s"],"capacity":1}`
	oneRule   = `{"version":1,"rules":[{"name":"r","limits":["1/1s"],`
	groups    = strings.Repeat("(", 300) + "a" + strings.Repeat(")*", 200) + strings.Repeat(")", 100)
	sixteen   = strings.TrimSuffix(strings.Repeat(`{"header":"h"},`, 16), ",")
	manyHosts = strings.TrimSuffix(strings.Repeat(`"host",`, 16), ",")
	longName  = strings.Repeat("a", policy.MaxBytes-100)
)

// hostileTexts are policies that try to be expensive to read.
func hostileTexts() map[string]string {
	return map[string]string{
		"rules with an expression each":     rules(`{"name":"r%[1]d","match":{"paths":["~/u%[1]d/[0-9]+"]}` + tiny),
		"short expressions":                 paths(`"~/%d*"`),
		"ranges in which case counts not":   paths(`"~(?i)[B-\\x{1e942}]%d"`),
		"the same such range":               paths(`"~(?i)[B-\\x{1e942}]"`),
		"too many states":                   paths(`"~.*a.{30}%d"`),
		"large tables":                      paths(`"~.*a.{10}%d"`),
		"many classes":                      paths(`"~` + strings.Repeat(`\\pL\\PL`, 7) + `%d"`),
		"too many classes":                  paths(`"~` + strings.Repeat(`\\pL|`, 200) + `%d"`),
		"one class, often":                  paths(`"~\\pL{490}%d"`),
		"a large class":                     paths(`"~[%d` + strings.Repeat(`a-zé-ü`, 100) + `]"`),
		"optional repeats":                  paths(`"~(?:a?){330}%d"`),
		"repeats of a long text":            paths(`"~/(?:` + strings.Repeat("x", 900) + `){1000}%d"`),
		"repeats of repeats":                paths(`"~(?:(?:(?:a{10}){10}){10})%d"`),
		"nothing, often":                    paths(`"~(?:(?:)*){900}%d"`),
		"assertions":                        paths(`"~(?:\\b.|\\B.|$|^){0,60}%d"`),
		"nested":                            paths(`"~` + groups + `%d"`),
		"alternations":                      paths(`"~%d|` + strings.Repeat("ab|cd|[e-g]", 80) + `"`),
		"broken expressions":                paths(`"~(%d"`),
		"one expression":                    paths(`"~` + strings.Repeat(`[a-z]`, 200_000) + `"`),
		"exact paths":                       paths(`"/%d"`),
		"exact paths that are exempt":       exempting("paths", "[", `"/%d/"`, "]"),
		"headers that are exempt":           exempting("headers", "{", `"h%d":"!"`, "}"),
		"expressions of overrides":          overrides(`{"header":"a"}`, `"~x%d"`),
		"overrides with parts that differ":  overrides(manyHosts, strings.Repeat(`"*",`, 15)+`"%dx*"`),
		"unknown fields":                    filledf(`{"version":1,`, `}`, `"f%d":1`),
		"long unknown fields":               filledf(`{"version":1,`, `}`, `"%064d":1`),
		"unknown fields of a rule":          filledf(`{"version":1,"rules":[{`, `}]}`, `"on_%d":1`),
		"unknown words":                     rules(`{"name":"a","mode":"abcdef"}`),
		"one name":                          rules(`{"name":"a","limits":["1/1s"]}`),
		"one counter":                       rules(`{"name":"r%d","counter":"c","limits":["1/1s"]}`),
		"rules that clients escape":         rules(`{"name":"r%d","limits":["1/1s"],"key":[{"header":"h"}]}`),
		"headers":                           filledf(oneRule+`"match":{"headers":{`, `}}}]}`, `"h%d":"!"`),
		"networks":                          filledf(oneRule+`"match":{"client_ips":[`, `]}}]}`, `"::%x"`),
		"choices":                           rules(`{"name":"r%d","key":[{"first_of":[` + sixteen + `]}],"limits":["1/1s"]}`),
		"objects":                           rules(`{}`),
		"nothings":                          rules(`null`),
		"brackets":                          strings.Repeat("[", policy.MaxBytes),
		"a long name":                       `{"version":1,"rules":[{"name":"` + longName + `"}]}`,
		"a policy above all that it may be": strings.Repeat("a", 64<<20),
	}
}

// Whatever the text, it is refused or taken at the expense of at most a second
// of a processor and 200 MB.
func TestReadingIsBounded(t *testing.T) {
	const bound = time.Second
	self, err := os.Executable()
	require.NoError(t, err)
	slowest, largest := time.Duration(0), 0
	texts := hostileTexts()
	if proctest.Race { // one goroutine reads each, in a process of its own
		texts = map[string]string{"unknown words": texts["unknown words"]}
	}
	for name, text := range texts {
		cpu, memory, said := readAlone(t, self, text)
		for again := 0; cpu >= bound && again < 2; again++ { // other programs only add to a time: the least is what it takes
			next, _, _ := readAlone(t, self, text)
			cpu = min(cpu, next)
		}
		t.Logf("%-34s %4d ms %4d MB: %.100s", name, cpu.Milliseconds(), memory>>20, said)
		slowest, largest = max(slowest, cpu), max(largest, memory)
	}
	ms, mb := slowest.Milliseconds(), largest>>20
	t.Logf("%d hostile policies: at most %d ms of a processor and %d MB each", len(texts), ms, mb)
	proctest.Below(t, slowest, bound)
	proctest.Below(t, largest, 200<<20)
}

// readAlone reads a text in a process of its own, and returns what that took and said.
func readAlone(t *testing.T, self, text string) (cpu time.Duration, memory int, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), self)
	status := filepath.Join(t.TempDir(), "status")
	cmd.Env = append(os.Environ(), asReader+"=1", proctest.StatusInto(status), proctest.Collecting)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1") // with more, the collector uses what is idle
	cmd.Stdin = strings.NewReader(text)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Run(), out.String())
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return cpu, proctest.Memory(t, status, proctest.Peak), out.String()
}
