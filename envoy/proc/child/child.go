// Package child runs programs for tests, measurements and a first try.
//
// Its invariant: no child outlives this process, however that ends. It must not import
// another package of this module.
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

// Start starts a child. What it prints also goes to cmd.Stdout, if that is set. When it
// has ended, atEnd is called.
func Start(cmd *exec.Cmd, atEnd ...func()) (*Child, error) {
	c := &Child{cmd: cmd, out: output{tee: cmd.Stdout}, done: make(chan struct{})}
	// A grandchild that holds the pipe must not hold Wait for ever.
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr, cmd.WaitDelay = &c.out, &c.out, dieWithParent(), time.Second
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that started a child for the
		// end of its parent, so that thread waits with it.
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

// Running reports whether it has not ended.
func (c *Child) Running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal, such as SIGSTOP and SIGCONT; one that has ended gets none.
func (c *Child) Signal(signal os.Signal) error {
	if err := c.cmd.Process.Signal(signal); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Pid is the process id.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// CPU is the processor time that the child has used so far.
func (c *Child) CPU() (time.Duration, error) { return CPUTime(c.Pid()) }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Kill ends the child as kill -9 does and waits until it is gone.
func (c *Child) Kill() error {
	if err := c.Signal(os.Kill); err != nil {
		return fmt.Errorf("kill %s: %w", filepath.Base(c.cmd.Path), err)
	}
	<-c.done
	return nil
}

// Log is everything that the child has printed so far.
func (c *Child) Log() string { return c.out.String() }

// tail is the end of what it has printed, for messages.
func (c *Child) tail() string {
	const maxTail = 4000
	log := c.Log()
	return log[max(0, len(log)-maxTail):]
}

// patience is how long Until waits.
const patience = 5 * time.Minute

// Until waits for the child to do something: until ask returns true or the child
// has ended.
func (c *Child) Until(ctx context.Context, what string, ask func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-c.done:
			return fmt.Errorf("wait for %s to %s: it ended: %v\n%s", filepath.Base(c.cmd.Path), what, c.cmd.ProcessState, c.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to %s: %w\n%s", filepath.Base(c.cmd.Path), what, ctx.Err(), c.tail())
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
