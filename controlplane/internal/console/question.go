package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	// cpuSeconds and maxBytes bound the process that answers a question. A machine that
	// is busy may take patience for those seconds.
	cpuSeconds = 1
	maxBytes   = 200 << 20
	patience   = 10 * time.Second
	// compiling is how long it may take to compile the filter, once.
	compiling = 5 * time.Minute

	maxQuestions = 2 // at the same time
	// turnWithin is how long a visitor's next question waits for the last one: somebody
	// who types may go on to the next page before the text is checked.
	turnWithin   = 2 * time.Second
	maxLines     = 500
	maxLineBytes = 256 << 10 // of all lines
	maxReply     = 8 << 20
)

// Text is a policy as somebody wrote it.
type Text struct{ File, YAML string }

// Question is about a policy: whether it is valid, how it differs from the one before,
// what requests would get.
type Question struct {
	Prepare bool  `json:",omitempty"` // nothing is asked: compile the filter for the questions to come
	Before  *Text `json:",omitempty"`
	After   *Text
	Lines   string `json:",omitempty"` // as simulate reads them
}

// Reply answers a question.
type Reply struct {
	Problems []api.Problem // why the policy is not valid
	Warnings []api.Problem
	Words    []string     // the difference, a sentence each
	Changes  []api.Change // what becomes of counters; nil where Before cannot be read
	Diff     string       // of the texts
	Steps    []Step       // a line each
	Trouble  string       // why the lines cannot be answered
}

// asker runs the processes that answer.
type asker struct {
	command []string
	running chan struct{}
	ended   func(*exec.Cmd) // for tests

	preparing  sync.Mutex
	isPrepared bool

	mu   sync.Mutex
	busy map[string]*turn
}

// turn is that of one visitor: a question is answered, another may wait.
type turn struct {
	questions int
	taken     chan struct{}
}

func newAsker(command []string) *asker {
	return &asker{command: command, running: make(chan struct{}, maxQuestions), busy: map[string]*turn{}}
}

// prepare has the filter compiled while the visitor reads the page.
func (a *asker) prepare() {
	if !a.preparing.TryLock() {
		return // it is under way
	}
	go func() {
		defer a.preparing.Unlock()
		_ = a.compiled()
	}()
}

// prepared waits until the filter is compiled. What failed is tried again.
func (a *asker) prepared() error {
	a.preparing.Lock()
	defer a.preparing.Unlock()
	return a.compiled()
}

func (a *asker) compiled() error {
	if a.isPrepared {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), compiling)
	defer cancel()
	_, err := a.run(ctx, Question{Prepare: true})
	a.isPrepared = err == nil
	return err
}

// ask answers a question after the last one of the same visitor, or returns a failure.
func (a *asker) ask(ctx context.Context, who string, q Question) (*Reply, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	if !a.begin(ctx, who) {
		return nil, &failure{code: http.StatusServiceUnavailable, text: "your last question is still being answered: try again in 1 s", retryAfter: "1"}
	}
	defer a.end(who)
	select {
	case a.running <- struct{}{}:
		defer func() { <-a.running }()
	default:
		return nil, errBusy
	}
	if q.Lines != "" {
		if err := a.prepared(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return a.run(ctx, q)
}

func (a *asker) begin(ctx context.Context, who string) bool {
	a.mu.Lock()
	own := a.busy[who]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		a.busy[who] = own
	}
	if own.questions == 2 {
		a.mu.Unlock()
		return false
	}
	own.questions++
	a.mu.Unlock()
	wait := time.NewTimer(turnWithin)
	defer wait.Stop()
	select {
	case own.taken <- struct{}{}:
		return true
	case <-wait.C:
	case <-ctx.Done():
	}
	a.leave(who)
	return false
}

func (a *asker) end(who string) {
	a.mu.Lock()
	<-a.busy[who].taken
	a.mu.Unlock()
	a.leave(who)
}

func (a *asker) leave(who string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy[who].questions--; a.busy[who].questions == 0 {
		delete(a.busy, who)
	}
}

func (q *Question) check() error {
	bad := func(format string, args ...any) error {
		return &failure{code: http.StatusUnprocessableEntity, text: fmt.Sprintf(format, args...)}
	}
	switch n := strings.Count(q.Lines, "\n"); {
	case len(q.After.YAML) > policy.MaxBytes:
		return bad("the policy is larger than %d bytes", policy.MaxBytes)
	case n > maxLines || len(q.Lines) > maxLineBytes:
		return bad("the requests are more than %d lines or %d bytes: sluice simulate takes more", maxLines, maxLineBytes)
	}
	return nil
}

// run starts the process and reads its reply.
func (a *asker) run(ctx context.Context, q Question) (*Reply, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, a.command[0], a.command[1:]...)
	cmd.Args[0] = "sluice"                                 // whatever the path is
	cmd.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=none"} // secrets of serve may be in its own
	cmd.Stdin = bytes.NewReader(text)
	stdout, stderr := &bounded{most: maxReply}, &bounded{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	if a.ended != nil {
		a.ended(cmd)
	}
	if err != nil {
		return nil, whyNot(ctx, cmd, err, stderr.kept.String())
	}
	if stdout.overflows {
		return nil, tooMuch(fmt.Sprintf("%d MB of answers", maxReply>>20))
	}
	var reply Reply
	if err := json.Unmarshal(stdout.kept.Bytes(), &reply); err != nil {
		return nil, fmt.Errorf("read the reply: %w", err)
	}
	return &reply, nil
}

// whyNot says which bound a process met, or what it said.
func whyNot(ctx context.Context, cmd *exec.Cmd, err error, said string) error {
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err() // the visitor has gone
	case !errors.As(err, &exit):
		return fmt.Errorf("start the process that answers: %w", err)
	case ctx.Err() != nil:
		return tooMuch(patience.String())
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return tooMuch(fmt.Sprintf("%d s of computing", cpuSeconds))
	}
	if strings.Contains(said, "out of memory") || strings.Contains(said, "cannot allocate memory") {
		return tooMuch(fmt.Sprintf("%d MB of memory", maxBytes>>20))
	}
	return &failure{code: http.StatusUnprocessableEntity, text: printable.Cut(strings.TrimSpace(said), 500)}
}

func tooMuch(what string) error {
	return &failure{code: http.StatusUnprocessableEntity, text: "the question took more than " + what +
		": ask about a smaller policy or fewer requests, or use sluice validate, diff and simulate"}
}

// bounded keeps the first bytes and drops the rest. The buffer is not embedded: io.Copy
// would read into it, past Write.
type bounded struct {
	kept      bytes.Buffer
	most      int
	overflows bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := min(b.most-b.kept.Len(), len(p))
	b.overflows = b.overflows || room < len(p)
	b.kept.Write(p[:room])
	return len(p), nil
}
