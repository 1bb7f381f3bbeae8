package sim_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

var update = flag.Bool("update", false, "write what the newest Envoy does anew")

// talk is a request of a scenario: what the filter is told to do, and which line of
// the log to wait for before the next.
type talk struct {
	name, do, until string
	body            bool
	leave           string // the client of this earlier request goes, instead of a new one
}

func (tk talk) asked() asked {
	a := asked{headers: [][2]string{{"x-do", tk.do}}}
	if tk.body {
		a.method, a.body = "POST", "body"
	}
	return a
}

// scenario is a conversation that is recorded on a real Envoy.
type scenario struct {
	name  string
	talks []talk
}

// many repeats a step for requests r0, r1, ….
func many(n int, step string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(step, "r"+strconv.Itoa(i)))
	}
	return strings.Join(all, ";")
}

func crowd(n int, last string) (talks []talk) {
	for i := range n {
		talks = append(talks, talk{name: "r" + strconv.Itoa(i), do: "pause"})
	}
	return append(talks, talk{name: "x", do: "open quota|send later later later echo " + last})
}

var scenarios = []scenario{
	{"resume from a message", []talk{{name: "a", do: "pause|open quota|send echo path a;buffer;resume a;path a;buffer"}}},
	{"deny from a message", []talk{{name: "a", do: "pause|open quota|send echo reply a 429;reply a 430;resume a"}}},
	{"resume twice", []talk{{name: "a", do: "pause|open quota|send echo resume a;resume a"}}},
	{"resume, then deny", []talk{{name: "a", do: "pause|open quota|send echo resume a;reply a 429"}}},
	{"deny oneself", []talk{{name: "a", do: "reply a 429|reply a 430"}}},
	{"resume oneself", []talk{{name: "a", do: "pause|resume a"}}},
	{"with a body", []talk{
		{name: "a", do: "pause|open quota|send echo resume a", body: true, until: "resume a"},
		{name: "b", do: "pause|open quota|send echo reply b 429", body: true}}},
	{"resume from a tick", []talk{{name: "a", do: "pause|tick 20 path a+resume a"}}},
	{"deny from a tick", []talk{{name: "a", do: "pause|tick 20 reply a 429"}}},
	{"another request resumes", []talk{{name: "a", do: "pause|tick 1000000", until: "tick"}, {name: "b", do: "resume a"}}},
	{
		name:  "another request denies",
		talks: []talk{{name: "a", do: "pause|tick 1000000", until: "tick"}, {name: "b", do: "pause|reply a 429|reply b 403"}},
	},
	{"three at once", crowd(3, many(3, "resume %s"))},
	{"deny three at once", crowd(3, many(3, "reply %s 429"))},
	{"deny and resume by turns", crowd(4, "reply r0 429;resume r1;reply r2 429;resume r3")},
	{"two messages", []talk{{name: "a", do: "pause|open quota|send both path a;buffer/resume a"}}},
	{"the server closes", []talk{{name: "a", do: "pause|onclose reply a 503|open quota|send close 9"}}},
	{"the server closes well", []talk{{name: "a", do: "pause|onclose half+half+resume a|open quota|send close 0"}}},
	{"after half", []talk{{name: "a", do: "pause|open quota|send later echo resume a|half|send echo nothing|half"}}},
	{"last message", []talk{{name: "a", do: "pause|open quota|last later echo resume a|send echo nothing"}}},
	{"half, then the server closes", []talk{{name: "a", do: "pause|onclose send no+half+resume a|open quota|half"}}},
	{"cancel in close", []talk{{name: "a", do: "pause|onclose cancel+send no+resume a|open quota|send close 3"}}},
	{"cancel", []talk{{name: "a", do: "open quota|send echo what is this|cancel|send no|half|cancel"}}},
	{"cancel in a message", []talk{{name: "a", do: "pause|open quota|send both cancel;send no;resume a/what is this"}}},
	{"wrong tokens", []talk{{name: "a", do: "sendto 2 x|sendto 4002 x|halfof 4002|cancelof 4002|effective 4000000"}}},
	{"no such cluster", []talk{{name: "a", do: "pause|onclose resume a|open nowhere"}}},
	{"connection refused", []talk{{name: "a", do: "pause|onclose half+resume a|open refused|send x"}}},
	{
		name: "the client goes",
		talks: []talk{{
			name:  "a",
			do:    "pause|open quota",
			until: "open quota 0",
		}, {leave: "a", until: "delete a"}, {name: "b", do: "resume a|reply a 429|path a"}},
	},
	{"the server goes", []talk{{name: "a", do: "pause|onclose half+resume a|open dying|send die"}}},
	{
		name:  "a trap leaves others waiting",
		talks: []talk{{name: "a", do: "pause|tick 1000000", until: "tick"}, {name: "b", do: "trap"}},
	},
}

// requireConducted has a courier take all scenarios, and compares or writes what was recorded.
func requireConducted(t *testing.T, c courier, wanted func(scenario) bool, anew bool) {
	t.Helper()
	r := openRecord(t, "talks.txt", anew)
	for _, s := range scenarios {
		if !wanted(s) {
			continue
		}
		from := len(c.log())
		answers, sent := map[string]string{}, map[string]conveyed{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, tk := range s.talks {
			before := len(c.log())
			until := tk.until
			if tk.leave != "" {
				sent[tk.leave].do(step{verb: "leave"})
			} else {
				x := c.send(tk.asked(), tk.name)
				sent[tk.name] = x
				all.Go(func() {
					answer := x.got()
					mu.Lock()
					defer mu.Unlock()
					answers[tk.name] = answer
				})
				if until == "" {
					until = "request_headers " + tk.name
				}
			}
			has := func() bool {
				return slices.ContainsFunc(c.log()[before:], func(line string) bool { return strings.HasPrefix(line, until) })
			}
			require.Eventually(t, has, time.Minute, 3*time.Millisecond, "%s: %s: %s\n%s", s.name, tk.name, until,
				strings.Join(c.log()[from:], "\n"))
		}
		all.Wait()
		trapped := strings.Contains(s.name, "trap")
		for name := range answers {
			has := func() bool { return trapped || slices.Contains(c.log()[from:], "delete "+name) }
			require.Eventually(t, has, time.Minute, 3*time.Millisecond, "%s: delete %s\n%s", s.name, name,
				strings.Join(c.log()[from:], "\n"))
		}
		time.Sleep(20 * time.Millisecond) // for what nobody waits for
		r.hold(s.name, written(c.log()[from:], answers))
	}
	r.close()
}

func anyTalk(scenario) bool { return true }
func anyAnswer(asked) bool  { return true }

// record is a file of what Envoy did, each thing under its name. It compares, or is written anew.
type record struct {
	t     *testing.T
	file  string
	known map[string]string
	anew  *strings.Builder // nil = compare
}

func openRecord(t *testing.T, name string, anew bool) *record {
	t.Helper()
	r := &record{t: t, file: filepath.Join("testdata", "guest", name), known: map[string]string{}}
	if anew {
		r.anew = &strings.Builder{}
	}
	text, err := os.ReadFile(r.file)
	require.NoError(t, err)
	for _, block := range strings.Split(string(text), "# ")[1:] {
		name, lines, _ := strings.Cut(block, "\n")
		r.known[name] = lines
	}
	return r
}

func (r *record) hold(name, got string) {
	r.t.Helper()
	if r.anew == nil {
		require.Equal(r.t, r.known[name], got, name)
		return
	}
	fmt.Fprintf(r.anew, "# %s\n%s", name, got)
}

func (r *record) close() {
	r.t.Helper()
	if r.anew != nil {
		require.NoError(r.t, os.WriteFile(r.file, []byte(r.anew.String()), 0o600))
	}
}

// written puts what came of an answer of the upstream behind all else: it comes when
// it comes.
func written(lines []string, answers map[string]string) string {
	var b strings.Builder
	names := slices.Sorted(maps.Keys(answers))
	fromUpstream := map[string][]string{}
	for _, line := range lines {
		words := strings.Fields(line)
		isLast := slices.Contains([]string{"response_headers", "log", "done", "delete"}, words[0])
		if isLast && strings.HasPrefix(answers[words[1]], "200") {
			fromUpstream[words[1]] = append(fromUpstream[words[1]], line)
			continue
		}
		b.WriteString(line + "\n")
	}
	for _, name := range names {
		for _, line := range fromUpstream[name] {
			b.WriteString(line + "\n")
		}
	}
	for _, name := range names {
		fmt.Fprintf(&b, "= %s %s\n", name, answers[name])
	}
	return b.String()
}

// peer is the server of the scenarios, in the same process.
type peer struct{ in *sim.Inbox }

func (p peer) Cancel()             {}
func (p peer) Send(message []byte) { p.answer(0, string(message)) }
func (p peer) CloseSend()          { p.in.Close(0, 0) }

func (p peer) answer(after time.Duration, message string) {
	word, rest, _ := strings.Cut(message, " ")
	switch word {
	case "later":
		p.answer(after+pause, rest)
	case "echo":
		p.in.Message(after, []byte(rest))
	case "both":
		first, second, _ := strings.Cut(rest, "/")
		p.in.Message(after, []byte(first))
		p.in.Message(after, []byte(second))
	case "close":
		code, _ := strconv.Atoi(rest)
		p.in.Close(after, uint32(code))
	case "die":
		p.in.Close(after, 14)
	}
}

func dial(c sim.Call, in *sim.Inbox) (sim.Peer, error) {
	switch c.Cluster {
	case "nowhere":
		return nil, errors.New("no such cluster")
	case "refused":
		in.Close(pause, 14)
	}
	return peer{in}, nil
}

type simCourier struct {
	*bench
}

// newSimCourier is in real time. Of the log it keeps what the guest says.
func newSimCourier(t *testing.T) (c simCourier) {
	t.Helper()
	c.bench = setUp(t, func(o *sim.Options) {
		o.Now = nil
		o.Dial = dial
		o.StreamIdle = idle
		o.Log = func(level sim.Level, vm int, m string) {
			if level == sim.Info && vm == 0 && c.bench != nil {
				c.note(&c.lines, m)
			}
		}
	})
	return c
}

func (c simCourier) log() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// The filter gets the callbacks and values that Envoys give it.
func TestAsRecorded(t *testing.T) {
	t.Parallel()
	b := newSimCourier(t)
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				b.TickDue()
			}
		}
	})
	t.Cleanup(func() { close(stop); ticking.Wait() })
	requireConducted(t, b, anyTalk, false)
	requireConveyed(t, newSimCourier(t), anyAnswer, false)
}

const (
	idle  = time.Second
	pause = 20 * time.Millisecond
)
