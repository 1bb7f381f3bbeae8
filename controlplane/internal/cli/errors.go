package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/clients"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Exit codes of the command.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Errors of several commands.
var (
	errInterrupted = errors.New("interrupted") // by a signal
	errStdin       = errors.New("cannot read the policy from standard input here")
)

// hinted is an error with advice.
type hinted struct {
	err   error
	hint  string
	usage bool
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

// withHint adds advice to an error: what the user can do about it.
func withHint(err error, hint string) error { return &hinted{err: err, hint: hint} }

// usageError is an error in how the command was called.
func usageError(err error, hint string) error { return &hinted{err: err, hint: hint, usage: true} }

// Hint returns the advice that an error carries, empty if it has none.
func Hint(err error) string {
	var h *hinted
	var f *manage.Failure
	switch {
	case errors.As(err, &h):
		return h.hint
	case errors.As(err, &f):
		return f.Hint
	case errors.Is(err, clients.ErrNoProxy):
		return "sluice status shows the proxies that were connected; --proxy asks one directly"
	case isMissingFlag(err):
		return "the command's --help shows examples"
	}
	return ""
}

// isMissingFlag reports whether a required flag is missing. Cobra has no type for that error.
func isMissingFlag(err error) bool { return strings.HasPrefix(err.Error(), "required flag(s)") }

// ExitCode returns what the process should exit with.
func ExitCode(err error) int {
	var h *hinted
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &h) && h.usage, isMissingFlag(err):
		return ExitUsage
	default:
		return ExitFailed
	}
}

// unlessStopped drops the error of a server that a signal stopped while it started: it ends like
// one that has served.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Lines returns the error's text, one line for each thing that is wrong. It is empty for an
// error that is only an exit code. A server may have sent parts of the text, so the lines are
// made safe for a terminal.
func Lines(err error) []string {
	var problems policyfile.Errors
	var lines []string
	switch {
	case errors.Is(err, errDiffers), errors.Is(err, errTestsFailed):
		return nil
	case errors.Is(err, context.Canceled):
		lines = []string{errInterrupted.Error()}
	case errors.As(err, &problems):
		for i := range problems {
			lines = append(lines, problems[i].String())
		}
	default:
		lines = strings.Split(err.Error(), "\n") // errors that were joined
	}
	for i := range lines {
		lines[i] = printable.Text(lines[i])
	}
	return lines
}
