package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
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
	*child.Child
	dir       string
	adminPath string
	admin     string // set by WaitReady
}

// stopGrace is how long Stop waits for Envoy to end by itself.
const stopGrace = 5 * time.Second

// Start starts an Envoy and returns at once; WaitReady waits until it serves.
// The process is killed when ctx ends, and at the latest when this program ends.
func Start(ctx context.Context, o Options) (*Process, error) {
	binary := o.Binary
	if binary == "" {
		found, err := Find()
		if err != nil {
			return nil, err
		}
		binary = found
	}
	dir, err := os.MkdirTemp("", "envoy-")
	if err != nil {
		return nil, fmt.Errorf("start envoy: %w", err)
	}
	bootstrap := filepath.Join(dir, "bootstrap.yaml")
	if err := os.WriteFile(bootstrap, o.Bootstrap, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("start envoy: %w", err), os.RemoveAll(dir))
	}
	p := &Process{dir: dir, adminPath: filepath.Join(dir, "admin")}
	level := o.LogLevel
	if level == "" {
		level = "info"
	}
	cmd := exec.CommandContext(ctx, binary,
		"--config-path", bootstrap,
		"--disable-hot-restart", // so that several can run, and a killed one leaves no shared memory
		"--concurrency", strconv.Itoa(max(o.Concurrency, 1)),
		"--log-level", level,
		"--file-flush-interval-msec", "200", // of access logs: 10 s otherwise
		"--admin-address-path", p.adminPath,
	)
	cmd.Stdout = o.LogTo
	p.Child, err = child.Start(cmd, func() { _ = os.RemoveAll(dir) })
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// WaitReady waits until Envoy's admin interface says that it is live: then every listener has its
// filters. It fails if the process ends before.
func (p *Process) WaitReady(ctx context.Context) error {
	return p.Until(ctx, "be ready", func() bool {
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

// WaitLog waits until the log contains a text.
func (p *Process) WaitLog(ctx context.Context, text string) error {
	return p.Until(ctx, fmt.Sprintf("log %q", text), func() bool {
		return strings.Contains(p.Log(), text)
	})
}

// Stop asks Envoy to end, waits, and kills it if that takes too long. It may be called more than
// once.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop envoy: %w", err)
	}
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.Done():
		return nil
	case <-grace.C:
		return p.Kill()
	}
}
