package cli

import (
	"errors"
	"strings"

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

// hinted is an error with advice.
type hinted struct {
	err   error
	hint  string
	usage bool
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

// withHint adds advice to an error: what to do about it.
func withHint(err error, hint string) error { return &hinted{err: err, hint: hint} }

// usageError is an error in how the command was called.
func usageError(err error, hint string) error { return &hinted{err: err, hint: hint, usage: true} }

// Hint returns the advice an error carries, empty if none.
func Hint(err error) string {
	var h *hinted
	var f *manage.Failure
	switch {
	case errors.As(err, &h):
		return h.hint
	case errors.As(err, &f):
		return f.Hint
	case isMissingFlag(err):
		return "the command's --help shows examples"
	}
	return ""
}

// isMissingFlag reports whether cobra missed a required flag, which it has no
// error of its own for.
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

// Lines returns the error's text, one line for each thing that is wrong; none
// for one that is only an exit code. Parts of it may come from a server, so it
// is made safe for a terminal.
func Lines(err error) []string {
	if errors.Is(err, errDiffers) {
		return nil
	}
	lines := strings.Split(err.Error(), "\n") // errors that were joined
	var problems policyfile.Errors
	if errors.As(err, &problems) {
		lines = make([]string, len(problems))
		for i := range problems {
			lines[i] = problems[i].String()
		}
	}
	for i := range lines {
		lines[i] = printable.Text(lines[i])
	}
	return lines
}
