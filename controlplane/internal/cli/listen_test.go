package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

func TestExitCode(t *testing.T) {
	require.Equal(t, 0, ExitCode(nil))
	require.Equal(t, 1, ExitCode(errors.New("x")))
	require.Equal(t, 1, ExitCode(withHint(errors.New("x"), "y")))
	require.Equal(t, 2, ExitCode(usageError(errors.New("x"), "y")))
	require.Equal(t, 2, ExitCode(fmt.Errorf("outside: %w", usageError(errors.New("x"), "y"))))
	require.Equal(t, 2, ExitCode(errors.New(`required flag(s) "file" not set`)))
}

func TestLines(t *testing.T) {
	require.Equal(t, []string{"x"}, Lines(errors.New("x")))
	require.Equal(t, []string{"x", "y·[2J"}, Lines(errors.Join(errors.New("x"), errors.New("y\x1b[2J"))))
	problems := policyfile.Errors{{File: "a", Line: 1, Column: 2, Path: "p", Message: "m"}, {Message: "n"}}
	require.Equal(t, []string{"a:1:2: p: m", "n"}, Lines(fmt.Errorf("outside: %w", problems)))
}
