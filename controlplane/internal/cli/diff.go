package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

type diffOptions struct {
	file string
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
	addPolicyFlag(cmd, &o.file)
	o.AddFlags(cmd, "")
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
	read, err := readPolicy(cmd, o.file, true)
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
	if err := o.output.print(cmd, d, func(b *strings.Builder) { d.print(b, name) }); err != nil {
		return err
	}
	if o.exitCode && d.Differs {
		return errDiffers
	}
	return nil
}

func (d *difference) print(b *strings.Builder, name string) {
	text := "no difference from " + name
	if d.Differs {
		text = d.Diff
	}
	b.WriteString(text + "\n")
	if d.Wasm != "" {
		b.WriteString("filter module: " + printable.Text(d.Wasm) + " stays, unless apply --wasm names another\n")
	}
	switch {
	case !d.Differs || d.Changes == nil: // where Changes is nil, a warning has said why
	case slices.ContainsFunc(d.Changes, func(c policydiff.Change) bool { return !c.Keeps }):
		printChanges(b, d.Changes)
	default:
		b.WriteString("all counters keep what they have counted\n")
	}
}

// unified is a diff without the line of a command that was never given.
func unified(oldName, old, newName string, text []byte) string {
	_, hunks, _ := bytes.Cut(diff.Diff(oldName, []byte(old), newName, text), []byte("\n"))
	return string(hunks)
}

// current returns the newest revision of a policy, nil before the first. One that is damaged
// or was aborted is passed over, as it is for proxies.
func (c *client) current(ctx context.Context, policy string) (*api.Revision, error) {
	query := policyQuery(policy)
	query.Set("limit", "100")
	h, err := call[api.History](ctx, c, http.MethodGet, "/v1/policies", query, nil)
	if err != nil {
		return nil, err
	}
	whole := slices.IndexFunc(h.Revisions, func(r store.Summary) bool { return !r.Damaged && !r.Rollout.IsAborted() })
	if whole < 0 {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	return call[api.Revision](ctx, c, http.MethodGet, "/v1/policies/"+number(h.Revisions[whole].Number), policyQuery(policy), nil)
}

// counterChanges compares a policy with the revision it is to replace, nil for
// none. A revision of another version of sluice may be beyond this one.
func counterChanges(cmd *cobra.Command, before *api.Revision, after *policy.Policy) []policydiff.Change {
	if before == nil {
		return policydiff.Between(nil, after)
	}
	old, _, _, err := policyfile.Read(before.File, []byte(before.YAML))
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: this sluice cannot read revision %d, so which counters restart is not known: %s\n",
			before.Number, printable.Text(Lines(err)[0]))
		return nil
	}
	return policydiff.Between(old, after)
}

// printChanges prints what becomes of the counters that do not stay as they are.
func printChanges(w io.Writer, changes []policydiff.Change) {
	for _, change := range changes {
		if !change.Keeps {
			fmt.Fprintln(w, printable.Text(change.Text))
		}
	}
}
