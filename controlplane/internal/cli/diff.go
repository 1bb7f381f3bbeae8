package cli

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

type diffOptions struct {
	policyInput
	clientOptions
	output   output
	exitCode bool
}

// errDiffers is the exit code of diff --exit-code, and no message.
var errDiffers = errors.New("the policies differ")

func newDiffCommand() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Show what applying a policy would change, and which counters would restart",
		Long: `Compare a policy with the current revision: first the text, then what becomes of
the counters if it is applied. Those that are not listed keep all they have
counted. Applies nothing.`,
		Example: `  sluice diff -f policy.yaml
  sluice diff -f policy.yaml --exit-code   # exits 1 if the texts differ
  sluice diff -f policy.yaml --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return diffPolicies(cmd, o) },
	}
	o.policyInput.AddFlags(cmd)
	o.clientOptions.AddFlags(cmd)
	o.output.AddFlags(cmd)
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit 1 if the texts differ")
	return cmd
}

// difference is what diff prints as JSON.
type difference struct {
	Revision uint64       `json:"revision"` // 0 = nothing has been applied yet
	File     string       `json:"file"`
	Differs  bool         `json:"differs"`
	Diff     string       `json:"diff"`    // unified
	Changes  []api.Change `json:"changes"` // null where the revision cannot be read
}

func diffPolicies(cmd *cobra.Command, o diffOptions) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	read, err := o.read(cmd)
	warn(cmd, read.warnings)
	if err != nil {
		return err
	}
	before, err := c.current(cmd.Context())
	if err != nil {
		return err
	}
	d := difference{File: read.name}
	name, text := "nothing applied yet", ""
	if before != nil {
		d.Revision, text = before.Number, before.YAML
		name = fmt.Sprintf("revision %d", before.Number)
	}
	d.Diff = unified(name, text, read.name, read.text)
	d.Differs = d.Diff != ""
	d.Changes = counterChanges(cmd, before, read.policy)
	if err := d.print(cmd, o.output, name); err != nil {
		return err
	}
	if o.exitCode && d.Differs {
		return errDiffers
	}
	return nil
}

func (d *difference) print(cmd *cobra.Command, as output, name string) error {
	w := cmd.OutOrStdout()
	if as == outputJSON {
		return printJSON(w, d)
	}
	if !d.Differs {
		_, err := fmt.Fprintf(w, "no difference from %s\n", name)
		return err
	}
	if _, err := fmt.Fprint(w, d.Diff, "\n"); err != nil {
		return err
	}
	if d.Changes == nil {
		return nil // said already
	}
	for _, change := range d.Changes {
		if !change.Keeps {
			printChanges(w, d.Changes)
			return nil
		}
	}
	_, err := fmt.Fprintln(w, "all counters keep what they have counted")
	return err
}

// unified is a diff without the line of a command that was never given.
func unified(oldName, old, newName string, text []byte) string {
	_, hunks, _ := bytes.Cut(diff.Diff(oldName, []byte(old), newName, text), []byte("\n"))
	return string(hunks)
}
