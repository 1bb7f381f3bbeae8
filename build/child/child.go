// Package child runs programs for tests and measurements.
//
// Its invariant: no child outlives this process, however that ends. It must not import
// another package of this module.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Child is a process that does not outlive this one.
type Child struct {
	cmd  *exec.Cmd
	out  strings.Builder // read after done
	done chan struct{}
	err  error // of Wait; read after done
}

// Start starts a child.
func Start(cmd *exec.Cmd) (*Child, error) {
	c := &Child{cmd: cmd, done: make(chan struct{})}
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
			c.err = cmd.Wait()
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

// Kill ends the child as kill -9 does and waits until it is gone.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// patience is how long Until waits.
const patience = 2 * time.Minute

// Until waits for the child to do something: until ask returns true or the child
// has ended.
func (c *Child) Until(ctx context.Context, what string, ask func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-c.done:
			return fmt.Errorf("wait for %s to %s: it ended: %w\n%s", filepath.Base(c.cmd.Path), what, errors.Join(c.err), c.out.String())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to %s: %w", filepath.Base(c.cmd.Path), what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
