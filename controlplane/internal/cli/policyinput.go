package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// maxRead is how much of a policy file is read: more than a policy may have,
// so that the message can tell its size, and not all that a device may give.
const maxRead = 64 << 20

// policyInput is a policy a command is given.
type policyInput struct {
	file string
}

// AddFlags adds -f.
func (i *policyInput) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&i.file, "file", "f", "", "policy `FILE`, - for standard input (required)")
	_ = cmd.MarkFlagRequired("file")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml", "json")
}

// policyText is a policy read and found valid.
type policyText struct {
	name     string // of the file, without folders
	text     []byte
	policy   *policy.Policy
	warnings []policy.Problem
}

// read reads and judges the policy. An error may be a policy.Errors.
func (i *policyInput) read(cmd *cobra.Command) (policyText, error) {
	from, shown := cmd.InOrStdin(), "standard input"
	name := "stdin.yaml"
	if i.file != "-" {
		f, err := os.Open(i.file)
		if err != nil {
			return policyText{}, fmt.Errorf("read policy: %w", err)
		}
		defer f.Close()
		from, shown, name = f, i.file, filepath.Base(i.file)
	}
	text, err := io.ReadAll(io.LimitReader(from, maxRead))
	if err != nil {
		return policyText{}, fmt.Errorf("read policy: %w", err)
	}
	p, _, warnings, err := policyfile.Read(shown, text)
	if err != nil {
		return policyText{warnings: warnings}, err
	}
	return policyText{name: name, text: text, policy: p, warnings: warnings}, nil
}

// warn prints warnings beside what a command prints.
func warn(cmd *cobra.Command, warnings []policy.Problem) {
	for i := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warnings[i].String())
	}
}
