package cli

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// addPolicyFlag adds -f for the policy that a command is about.
func addPolicyFlag(cmd *cobra.Command, file *string) {
	addFileFlag(cmd, file, "policy `FILE`, - for standard input")
	markRequired(cmd, "file")
}

// policyText is a policy read and found valid.
type policyText struct {
	name     string // of the file, without folders
	text     []byte
	tree     *policy.Node
	policy   *policy.Policy
	warnings []policyfile.Problem
}

// policyName is the name of the policy in the file.
func (t *policyText) policyName() string {
	head, _ := policy.SplitPlacement(t.tree)
	placement, _ := policy.ReadPlacement(head) // it is valid
	return placement.Name
}

// json is the policy as the filter gets it.
func (t *policyText) json() []byte { return policy.PushedJSON(t.tree) }

// readPolicy reads and judges a policy, and prints its warnings. An error may be a
// policyfile.Errors. With dash, - is standard input.
func readPolicy(cmd *cobra.Command, file string, dash bool) (policyText, error) {
	read, err := judgePolicy(cmd, file, dash)
	warn(cmd, read.warnings)
	return read, err
}

// judgePolicy is readPolicy without printing.
func judgePolicy(cmd *cobra.Command, file string, dash bool) (policyText, error) {
	text, shown, err := readText(cmd, "policy", file, dash)
	if err != nil {
		return policyText{}, err
	}
	name := "stdin.yaml"
	if file != "-" {
		name = filepath.Base(file)
	}
	p, tree, warnings, err := policyfile.Read(shown, text)
	if err != nil {
		return policyText{warnings: warnings}, err
	}
	return policyText{name: name, text: text, tree: tree, policy: p, warnings: warnings}, nil
}

// readText reads a file that is at most as large as a policy. It also returns the name for
// messages. With dash, - is standard input.
func readText(cmd *cobra.Command, what, file string, dash bool) (text []byte, shown string, err error) {
	if dash && file == "-" {
		shown = "standard input"
		text, err = input.All(cmd.Context(), cmd.InOrStdin(), shown, policy.MaxBytes)
	} else {
		shown = file
		text, err = input.File(file, policy.MaxBytes)
	}
	var irregular *input.Irregular
	switch {
	case errors.Is(err, input.ErrInterrupted):
		return nil, "", err
	case dash && errors.As(err, &irregular):
		return nil, "", withHint(fmt.Errorf("read %s: %w", what, err), "- reads standard input, also from a pipe")
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", what, err)
	}
	return text, shown, nil
}

// warn prints warnings to standard error.
func warn(cmd *cobra.Command, warnings []policyfile.Problem) {
	for i := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warnings[i].String())
	}
}
