package cli

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/console"
)

// answerCommand is what serve starts for each question of the console's playground.
const answerCommand = "console-answer"

// newConsoleAnswerCommand is for serve alone.
func newConsoleAnswerCommand() *cobra.Command {
	var cacheDir string
	cmd := &cobra.Command{
		Use:     answerCommand,
		Short:   "Answer a question of the console on standard input, within bounds",
		Hidden:  true,
		Example: `  echo '{"After": {"File": "policy.yaml", "YAML": "version: 1"}}' | sluice console-answer`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := build.Filter()
			if err != nil {
				return err
			}
			return console.Answer(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), filter, cacheDir)
		},
	}
	cmd.Flags().StringVar(&cacheDir, "cache", "", "`DIR` of compiled filters")
	_ = cmd.MarkFlagDirname("cache")
	return cmd
}

// withConsole puts the console before the API. Call end when nothing is served any more.
func withConsole(handler http.Handler, g guard, log *slog.Logger) (both http.Handler, end func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program: %w", err)
	}
	if runtime.GOOS == "linux" {
		self = "/proc/self/exe" // also after an upgrade has replaced the file
	}
	dir, end := compiledFilters(), func() error { return nil }
	if dir == "" {
		if dir, err = os.MkdirTemp("", "sluice-compiled-"); err != nil {
			return nil, nil, fmt.Errorf("make a directory for the compiled filter: %w", err)
		}
		end = func() error { return os.RemoveAll(dir) }
	}
	return console.New(console.Options{
		API: handler, Access: g.identify != nil, Question: []string{self, answerCommand, "--cache", dir}, Log: log,
	}), end, nil
}
