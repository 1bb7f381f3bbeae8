// Package child runs programs for tests, measurements and first steps.
//
// Its invariant: on Linux, no child outlives this process, even if that is killed. It must not
// import another package of this module.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Child is a process that does not outlive this one.
type Child struct {
	cmd  *exec.Cmd
	out  output
	done chan struct{}
}

// Start starts a child. What it prints also goes to cmd.Stdout, if that is set. After its end,
// atEnd is called.
func Start(cmd *exec.Cmd, atEnd ...func()) (*Child, error) {
	c := &Child{cmd: cmd, out: output{tee: cmd.Stdout}, done: make(chan struct{})}
	cmd.Stdout = &c.out
	cmd.Stderr = &c.out
	cmd.SysProcAttr = dieWithParent()
	cmd.WaitDelay = time.Second // a grandchild may keep the pipe open for longer
	started := make(chan error)
	go func() {
		// To the kernel, the parent of a child is the thread that started it. So this
		// thread has to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its ProcessState says how it ended
			for _, do := range atEnd {
				do()
			}
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return c, nil
}

// Running reports whether the child still runs.
func (c *Child) Running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal, such as SIGSTOP or SIGCONT, unless the child has ended.
func (c *Child) Signal(signal os.Signal) error {
	if err := c.cmd.Process.Signal(signal); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Pid is the process id.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// CPU returns the processor time that the child has used so far.
func (c *Child) CPU() (time.Duration, error) { return CPUTime(c.Pid()) }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Kill ends the child as kill -9 does, and waits for its end.
func (c *Child) Kill() error {
	if err := c.Signal(os.Kill); err != nil {
		return fmt.Errorf("kill %s: %w", filepath.Base(c.cmd.Path), err)
	}
	<-c.done
	return nil
}

// Log returns all that the child has printed so far.
func (c *Child) Log() string { return c.out.String() }

// tail returns the end of the log, for messages.
func (c *Child) tail() string {
	const maxTail = 4000
	log := c.Log()
	return log[max(0, len(log)-maxTail):]
}

// patience is how long Until waits.
const patience = 5 * time.Minute

// Until waits until ask returns true: the child has done what the text says. It fails if the
// child ends before.
func (c *Child) Until(ctx context.Context, what string, ask func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	name := filepath.Base(c.cmd.Path)
	for !ask() {
		select {
		case <-c.done:
			return fmt.Errorf("wait for %s to %s: it ended: %v\n%s", name, what, c.cmd.ProcessState, c.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to %s: %w\n%s", name, what, ctx.Err(), c.tail())
		case <-tick.C:
		}
	}
	return nil
}

// output collects what a child prints while others read it.
type output struct {
	tee  io.Writer
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tee != nil {
		if n, err := o.tee.Write(p); err != nil {
			return n, err
		}
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
