package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// filterVariable makes this test program answer a question with the filter that it names.
const filterVariable = "SLUICE_CONSOLE_TEST_FILTER"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "answer" {
		filter, _ := os.ReadFile(os.Getenv(filterVariable)) // without it, no request is decided
		if err := Answer(context.Background(), os.Stdin, os.Stdout, filter, buildtest.CacheDir()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		buildtest.SaveStatus()
		return
	}
	code := m.Run()
	_ = os.RemoveAll(nativeDir)
	os.Exit(code)
}

// nativeDir holds what native builds.
var nativeDir = filepath.Join(os.TempDir(), fmt.Sprint("sluice-console-", os.Getpid()))

// native is this test program without the race detector, which needs more memory than a
// question is given.
var native = sync.OnceValues(func() (string, error) {
	if !buildtest.Race {
		return os.Executable()
	}
	file := filepath.Join(nativeDir, "console.test")
	out, err := exec.Command("go", "test", "-c", "-o", file, ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return file, err
})

// question is the command that answers, with more in its environment.
func question(t *testing.T, environment ...string) []string {
	t.Helper()
	program, err := native()
	require.NoError(t, err)
	command := append([]string{"env", filterVariable + "=" + os.Getenv(filterVariable)}, environment...)
	return append(command, program, "answer")
}

func TestPlayground(t *testing.T) {
	t.Setenv(filterVariable, buildtest.Filter(t))
	f := newFixture(t, true)
	b := f.as("read")
	csrf := b.csrf("/console/policy")
	ask := func(code int, fields ...string) string {
		t.Helper()
		form := url.Values{"csrf": {csrf}, "file": {"policy.yaml"}, "policy": {good}}
		for i := 0; i < len(fields); i += 2 {
			form.Set(fields[i], fields[i+1])
		}
		got, text := b.post("/console/policy", form)
		require.Equal(t, code, got, text)
		return text
	}
	text := ask(http.StatusOK, "do", "add", "method", "GET", "path", "/", "headers", "x-user-id: alice\r\n", "after", "20s", "times", "4")
	require.Equal(t, 3, strings.Count(text, "200 allowed"), "two, and one a minute later")
	require.Equal(t, 1, strings.Count(text, "429 denied"))
	require.Contains(t, text, "allowed again in 20000 ms")
	require.Contains(t, text, "{&#34;at_ms&#34;:60000,&#34;method&#34;:&#34;GET&#34;,&#34;path&#34;:&#34;/&#34;,&#34;headers&#34;:{&#34;x-user-id&#34;:[&#34;alice&#34;]}}")

	text = ask(http.StatusOK, "do", "ask", "lines", `{"at_ms":0,"op":"policy","file":"/etc/passwd"}`)
	require.Contains(t, text, "line 1: the policy here is the one above")
	text = ask(http.StatusOK, "do", "ask", "lines", `{"at_ms":0,"client_ip":"x"}`)
	require.Contains(t, text, "line 1: client_ip: &#34;x&#34; is no IP address")
	text = ask(http.StatusUnprocessableEntity, "do", "add", "after", "soon", "times", "1")
	require.Contains(t, text, "&#34;soon&#34; is not a time such as 500ms, 1s or 2m")
	text = ask(http.StatusUnprocessableEntity, "do", "ask", "lines", strings.Repeat("{}\n", maxLines+1))
	require.Contains(t, text, "the requests are more than 500 lines")
	text = ask(http.StatusOK, "do", "check", "policy", "version: 2\n")
	require.Contains(t, text, `data-line="1" data-column="10"`)

	code, text := b.post("/console/policy/check", url.Values{"csrf": {csrf}, "file": {"p"}, "policy": {"version: 1\ndomain: shop\nrulez: []\n"}})
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, `{"problems":[{"file":"p","line":3,"column":1,`)
}

// worst is the largest policy: as many rules as fit, each with a key and requests for all.
func worst(rules int) string {
	var b strings.Builder
	b.WriteString("version: 1\ndomain: shop\nrules:\n")
	for i := 0; i < rules && b.Len() < policy.MaxBytes-200; i++ {
		fmt.Fprintf(&b, "  - {name: r%d, key: [{header: h%d}], missing_key: share, algorithm: sliding_window_log, limits: [60/1h]}\n", i, i)
	}
	return b.String()
}

// What a question costs is bounded, whatever is asked.
func TestQuestionsAreBounded(t *testing.T) {
	t.Setenv(filterVariable, buildtest.Filter(t))
	a := newAsker(question(t))
	require.NoError(t, a.prepared())
	lines := strings.Repeat(`{"at_ms":0,"headers":{"h1":"a"}}`+"\n", maxLines)
	deep := "version: 1\nrules: " + strings.Repeat("[", 200_000)
	many := strings.Repeat("x: &a [*a]\n", 50_000)
	for name, q := range map[string]Question{
		"largest policy":     {After: &Text{"p", worst(policy.MaxRules)}},
		"compared":           {Before: &Text{"p", worst(policy.MaxRules)}, After: &Text{"p", strings.ReplaceAll(worst(policy.MaxRules), "60/1h", "61/1h")}},
		"asked":              {After: &Text{"p", worst(policy.MaxRules)}, Lines: lines},
		"asked, 1,000 rules": {After: &Text{"p", worst(1000)}, Lines: lines},
		"asked, 100 rules":   {After: &Text{"p", worst(100)}, Lines: lines},
		"deep":               {After: &Text{"p", deep}},
		"many":               {After: &Text{"p", many}},
		"lines":              {Before: &Text{"p", strings.Repeat("a\nb\n", 250_000)}, After: &Text{"p", strings.Repeat("b\nc\na\n", 170_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			status := filepath.Join(t.TempDir(), "status")
			a.command = question(t, buildtest.StatusInto(status))
			var cpu time.Duration
			a.ended = func(cmd *exec.Cmd) { cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() }
			clock := buildtest.StartStopwatch()
			reply, err := a.ask(t.Context(), "somebody", q)
			if err != nil {
				require.Regexp(t, `^the question took more than (1 s of computing|200 MB of memory|10s): ask about`, err.Error())
			} else {
				require.Empty(t, reply.Trouble)
			}
			buildtest.Below(t, cpu, 1200*time.Millisecond)
			buildtest.Below(t, clock.Elapsed(), patience+time.Second)
			t.Logf("%v of computing, %v", cpu.Round(time.Millisecond), err)
			if err == nil { // the system ended it at the bound otherwise
				peak := buildtest.Memory(t, status, buildtest.Peak)
				buildtest.Below(t, peak, 200<<20)
				t.Logf("%d MB", peak>>20)
			}
		})
	}
}

func TestOneQuestionAtATime(t *testing.T) {
	a := newAsker([]string{"sleep", "1"})
	q := Question{After: &Text{"p", ""}}
	done := make(chan error, 1)
	go func() { _, err := a.ask(t.Context(), "one", q); done <- err }()
	require.Eventually(t, func() bool { return len(a.running) == 1 }, time.Second, time.Millisecond)
	go func() { _, err := a.ask(t.Context(), "one", q); done <- err }() // waits
	waits := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.busy["one"].questions
	}
	require.Eventually(t, func() bool { return waits() == 2 }, time.Second, time.Millisecond)
	_, err := a.ask(t.Context(), "one", q)
	require.EqualError(t, err, "your last question is still being answered: try again in 1 s")
	require.Len(t, a.running, 1)
	go func() { _, err := a.ask(t.Context(), "two", q); done <- err }()
	require.Eventually(t, func() bool { return len(a.running) == 2 }, time.Second, time.Millisecond)
	_, err = a.ask(t.Context(), "three", q)
	require.Equal(t, errBusy, err)
	for range 3 {
		require.NotErrorIs(t, <-done, errBusy)
	}
	require.Empty(t, a.busy)
}

// What keeps the filter from being compiled, such as a full disk, may pass.
func TestPreparingIsTriedAgain(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	a := newAsker([]string{"sh", "-c", `cat >/dev/null; if [ -e "$0" ]; then echo '{}'; else echo no space >&2; exit 1; fi`, done})
	require.EqualError(t, a.prepared(), "no space")
	require.NoError(t, os.WriteFile(done, nil, 0o600))
	require.NoError(t, a.prepared())
	require.NoError(t, os.Remove(done))
	require.NoError(t, a.prepared(), "once is enough")
}

// The process that reads what somebody typed sees no secret of serve.
func TestQuestionsInheritNoEnvironment(t *testing.T) {
	t.Setenv("SECRET", "in the environment")
	_, err := newAsker([]string{"sh", "-c", `cat >/dev/null; echo "<$SECRET>" >&2; exit 1`}).
		ask(t.Context(), "somebody", Question{After: &Text{"p", ""}})
	require.EqualError(t, err, "<>")
}

func TestRepliesAreBounded(t *testing.T) {
	a := newAsker([]string{"sh", "-c", "cat >/dev/null; head -c 9000000 /dev/zero"})
	_, err := a.ask(t.Context(), "somebody", Question{After: &Text{"p", ""}})
	require.ErrorContains(t, err, "the question took more than 8 MB of answers: ask about")
}

func TestRuleWords(t *testing.T) {
	alice, left := "alice", uint32(2)
	for want, r := range map[string]answer.Rule{
		"r alice (missing): 2 left":       {Rule: "r", Key: []*string{&alice, nil}, Allowed: true, Remaining: &left},
		"r: 2 left, denied: limit":        {Rule: "r", Mode: "enforced", Remaining: &left, Reason: "limit"},
		"r: would deny: missing key":      {Rule: "r", Mode: "shadow", Reason: "missing_key"},
		"r: not asked":                    {Rule: "r", Mode: "shadow", Reason: "not_asked"},
		"r: unlimited":                    {Rule: "r", Allowed: true},
		"r alice: 2 left, no memory left": {Rule: "r", Key: []*string{&alice}, Allowed: true, Remaining: &left, Reason: "no_memory_left"},
	} {
		require.Equal(t, want, ruleWords(&r))
	}
}
