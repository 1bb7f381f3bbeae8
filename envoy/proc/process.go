package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options says which Envoy to start and how.
type Options struct {
	Binary      string    // path; empty = what Find finds
	Bootstrap   []byte    // YAML; ports 0 are fine, see Process.Admin and Process.Listener
	Concurrency int       // worker threads; 0 = 1
	LogLevel    string    // of --log-level; empty = "info"
	LogTo       io.Writer // also receives the log; may be nil
}

// Process is one running Envoy.
type Process struct {
	cmd       *exec.Cmd
	dir       string
	adminPath string
	log       logBuffer

	done chan struct{} // closed when the process has ended
	err  error         // of Wait; read after done

	admin string // set by WaitReady
}

// stopGrace is how long Stop waits for Envoy to end by itself.
const stopGrace = 5 * time.Second

// pollEvery is how often a wait looks again.
const pollEvery = 10 * time.Millisecond

// Start starts an Envoy and returns at once; WaitReady waits until it serves.
// The process is killed when ctx ends, at the latest when this program does.
func Start(ctx context.Context, o Options) (*Process, error) {
	binary := o.Binary
	if binary == "" {
		var err error
		if binary, err = Find(); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "envoy-")
	if err != nil {
		return nil, fmt.Errorf("start envoy: %w", err)
	}
	bootstrap := filepath.Join(dir, "bootstrap.yaml")
	if err := os.WriteFile(bootstrap, o.Bootstrap, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("start envoy: %w", err), os.RemoveAll(dir))
	}
	p := &Process{
		dir:       dir,
		adminPath: filepath.Join(dir, "admin"),
		log:       logBuffer{tee: o.LogTo},
		done:      make(chan struct{}),
	}
	level := o.LogLevel
	if level == "" {
		level = "info"
	}
	p.cmd = exec.CommandContext(ctx, binary,
		"--config-path", bootstrap,
		"--disable-hot-restart", // several side by side, and no shared memory left behind by a killed one
		"--concurrency", strconv.Itoa(max(o.Concurrency, 1)),
		"--log-level", level,
		"--file-flush-interval-msec", "200", // of access logs: 10 s otherwise
		"--admin-address-path", p.adminPath,
	)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = dieWithParent()
	// A grandchild that holds the pipe must not hold Wait for ever.
	p.cmd.WaitDelay = time.Second

	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start envoy: %w", err), os.RemoveAll(dir))
	}
	return p, nil
}

// run starts the process and waits for it. The kernel sends the parent-death
// signal when the *thread* that started the child ends, so this goroutine keeps
// its thread to itself for as long as the child lives.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = errors.Join(p.cmd.Wait(), os.RemoveAll(p.dir))
	close(p.done)
}

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (p *Process) Signal(signal os.Signal) error { return p.cmd.Process.Signal(signal) }

// WaitReady returns once Envoy says on its admin interface that it is live,
// which is after every listener has its filters. It fails when the process
// ends first.
func (p *Process) WaitReady(ctx context.Context) error {
	return p.poll(ctx, "wait for envoy", func() bool {
		if p.admin == "" {
			address, err := os.ReadFile(p.adminPath)
			if err != nil || len(address) == 0 {
				return false
			}
			p.admin = "http://" + string(address)
		}
		_, err := p.Get(ctx, "/ready")
		return err == nil
	})
}

// WaitLog returns once the log holds text.
func (p *Process) WaitLog(ctx context.Context, text string) error {
	return p.poll(ctx, fmt.Sprintf("wait for %q in the log of envoy", text), func() bool {
		return strings.Contains(p.Log(), text)
	})
}

// poll asks until it is answered with true, ctx ends or the process does.
func (p *Process) poll(ctx context.Context, what string, ask func() bool) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ask() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; its log ends:\n%s", what, ctx.Err(), p.logTail())
		case <-p.done:
			return fmt.Errorf("%s: it ended: %w; its log ends:\n%s", what, p.err, p.logTail())
		case <-tick.C:
		}
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Stop asks Envoy to end, waits, and kills it where that takes too long. It
// may be called more than once.
func (p *Process) Stop() error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop envoy: %w", err)
	}
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.done:
		return nil
	case <-grace.C:
		return p.Kill()
	}
}

// Kill ends Envoy without warning, as a crash would, and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill envoy: %w", err)
	}
	<-p.done
	return nil
}

func (p *Process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Log is everything Envoy has logged so far.
func (p *Process) Log() string { return p.log.String() }

// logTail is the end of the log, for messages.
func (p *Process) logTail() string {
	const maxTail = 4000
	log := p.Log()
	return log[max(0, len(log)-maxTail):]
}

// logBuffer collects output while others read it.
type logBuffer struct {
	tee  io.Writer
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tee != nil {
		if n, err := b.tee.Write(p); err != nil {
			return n, err
		}
	}
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
