package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sluice-ratelimit/sluice/build/machine"
)

// child is a process that does not outlive this one.
type child struct {
	cmd  *exec.Cmd
	out  bytes.Buffer // read after done
	done chan struct{}
	err  error // of Wait; read after done
}

func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr, cmd.WaitDelay = &c.out, &c.out, machine.DieWithParent(), time.Second
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

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// waitFor asks until it is answered with true or the child has ended.
func waitFor(ctx context.Context, what string, ask func() bool, c *child) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for !ask() {
		select {
		case <-c.done:
			return fmt.Errorf("wait for %s: it ended: %w\n%s", what, errors.Join(c.err), c.out.String())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
