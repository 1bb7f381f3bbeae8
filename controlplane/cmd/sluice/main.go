// Sluice is the command line and the control plane of per-client rate limits
// inside Envoy. This package prints errors and picks the exit code, nothing
// else does.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second signal kills.
	context.AfterFunc(ctx, stop)

	err := cli.NewCommand(os.Args[0]).ExecuteContext(ctx)
	if err == nil {
		return cli.ExitOK
	}
	for _, line := range cli.Lines(err) {
		fmt.Fprintln(os.Stderr, "error:", line)
	}
	if hint := cli.Hint(err); hint != "" {
		fmt.Fprintln(os.Stderr, "hint:", hint)
	}
	return cli.ExitCode(err)
}
