package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

type diffOptions struct {
	policyInput
	serverOptions
	exitCode bool
}

// errDiffers is the exit code of diff --exit-code, and no message.
var errDiffers = errors.New("the policies differ")

func newDiffCommand() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Show what applying a policy would change, and which counters would restart",
		Long: `Compare a policy with its current revision, by the name in the file: first the text, then what becomes of
the counters if it is applied. Counters that are not listed keep what they have
counted. Nothing is applied.`,
		Example: `  sluice diff -f policy.yaml
  sluice diff -f policy.yaml --exit-code   # exits 1 if the texts differ
  sluice diff -f policy.yaml --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return diffPolicies(cmd, o) },
	}
	o.policyInput.AddFlags(cmd)
	o.serverOptions.AddFlags(cmd, "")
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit 1 if the texts differ")
	return cmd
}

// difference is what diff prints as JSON.
type difference struct {
	Policy   string              `json:"policy"`
	Revision uint64              `json:"revision"` // 0 = nothing has been applied yet
	File     string              `json:"file"`
	Differs  bool                `json:"differs"`
	Diff     string              `json:"diff"`           // unified
	Wasm     string              `json:"wasm,omitempty"` // the revision's filter module, which apply keeps unless told otherwise
	Changes  []policydiff.Change `json:"changes"`        // null where the revision cannot be read
}

func diffPolicies(cmd *cobra.Command, o diffOptions) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	read, err := o.read(cmd)
	if err != nil {
		return err
	}
	before, err := c.current(cmd.Context(), read.policyName())
	if err != nil {
		return err
	}
	d := difference{File: read.name, Policy: read.policyName()}
	name, text := "nothing applied yet", ""
	if before != nil {
		d.Revision, text = before.Number, before.YAML
		if !before.Nacked { // apply does not keep a module that a proxy has refused
			d.Wasm = before.Wasm
		}
		name = fmt.Sprintf("revision %d", before.Number)
	}
	d.Diff = unified(name, text, read.name, read.text)
	d.Differs = d.Diff != ""
	d.Changes = counterChanges(cmd, before, read.policy)
	if err := o.output.print(cmd, d, func(w io.Writer) error { return d.print(w, name) }); err != nil {
		return err
	}
	if o.exitCode && d.Differs {
		return errDiffers
	}
	return nil
}

func (d *difference) print(w io.Writer, name string) error {
	text := fmt.Sprintf("no difference from %s\n", name)
	if d.Differs {
		text = d.Diff + "\n"
	}
	if d.Wasm != "" {
		text += "filter module: " + printable.Text(d.Wasm) + " stays, unless apply --wasm names another\n"
	}
	if _, err := io.WriteString(w, text); err != nil || !d.Differs || d.Changes == nil {
		return err // where Changes is nil, a warning has said why
	}
	if slices.ContainsFunc(d.Changes, func(c policydiff.Change) bool { return !c.Keeps }) {
		printChanges(w, d.Changes)
		return nil
	}
	_, err := fmt.Fprintln(w, "all counters keep what they have counted")
	return err
}

// unified is a diff without the line of a command that was never given.
func unified(oldName, old, newName string, text []byte) string {
	_, hunks, _ := bytes.Cut(diff.Diff(oldName, []byte(old), newName, text), []byte("\n"))
	return string(hunks)
}
