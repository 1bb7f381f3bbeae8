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

// diffOptions are the flags of diff.
type diffOptions struct {
	file string
	serverOptions
	exitCode bool
}

// AddFlags adds the flags.
func (o *diffOptions) AddFlags(cmd *cobra.Command) {
	addPolicyFlag(cmd, &o.file)
	o.serverOptions.AddFlags(cmd)
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit 1 if the texts differ")
}

// errDiffers is the exit code of diff --exit-code, and no message.
var errDiffers = errors.New("the policies differ")

func newDiffCommand() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Show what applying a policy would change, and which counters would restart",
		Long: `Compare a policy file with the current revision of the policy of that name. The output has
the changes of the text, then what happens to the counters if you apply the file. Counters
that are not listed keep their values. Nothing is applied.`,
		Example: `  sluice diff -f policy.yaml
  sluice diff -f policy.yaml --exit-code   # exits 1 if the texts differ
  sluice diff -f policy.yaml --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return diffPolicies(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

// difference is what diff prints as JSON.
type difference struct {
	Policy   string              `json:"policy"`
	Revision uint64              `json:"revision"` // 0: nothing has been applied yet
	File     string              `json:"file"`
	Differs  bool                `json:"differs"`
	Diff     string              `json:"diff"`           // unified
	Wasm     string              `json:"wasm,omitempty"` // the filter module that apply keeps without --wasm
	Changes  []policydiff.Change `json:"changes"`        // null if the revision cannot be read
}

func diffPolicies(cmd *cobra.Command, o *diffOptions) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	read, err := readPolicy(cmd, o.file, true)
	if err != nil {
		return err
	}
	d := difference{File: read.name, Policy: read.policyName()}
	before, wasm, err := c.current(cmd.Context(), d.Policy)
	if err != nil {
		return err
	}
	d.Wasm = wasm
	oldName := "nothing applied yet"
	old := ""
	if before != nil {
		oldName = fmt.Sprintf("revision %d", before.Number)
		old = before.YAML
		d.Revision = before.Number
	}
	d.Diff = unified(oldName, old, read.name, read.text)
	d.Differs = d.Diff != ""
	d.Changes = counterChanges(cmd, before, read.policy)
	if err := o.output.print(cmd, d, func(b *strings.Builder) { d.print(b, oldName) }); err != nil {
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
	case !d.Differs || d.Changes == nil: // a warning has said why it is nil
	case slices.ContainsFunc(d.Changes, func(c policydiff.Change) bool { return !c.Keeps }):
		printChanges(b, d.Changes)
	default:
		b.WriteString("all counters keep what they have counted\n")
	}
}

// unified is a diff without its first line, a command that nobody gave.
func unified(oldName, old, newName string, text []byte) string {
	_, hunks, _ := bytes.Cut(diff.Diff(oldName, []byte(old), newName, text), []byte("\n"))
	return string(hunks)
}

// current returns the newest revision of a policy, nil before the first, and the filter module that apply
// keeps. It passes over revisions that do not count, as serve does for proxies.
func (c *client) current(ctx context.Context, policy string) (newest *api.Revision, wasm string, err error) {
	query := policyQuery(policy)
	query.Set("limit", "100")
	h, err := call[api.History](ctx, c, http.MethodGet, "/v1/policies", query, content{})
	if err != nil {
		return nil, "", err
	}
	at := slices.IndexFunc(h.Revisions, func(r store.Summary) bool { return r.Counts() })
	if at < 0 {
		return nil, "", nil
	}
	path := "/v1/policies/" + number(h.Revisions[at].Number)
	newest, err = call[api.Revision](ctx, c, http.MethodGet, path, policyQuery(policy), content{})
	return newest, api.WasmInForce(h.Revisions), err
}

// counterChanges compares a policy with the revision that it is to replace, nil for none. It
// returns nil if this version of sluice cannot read the revision, which another may have stored.
func counterChanges(cmd *cobra.Command, before *api.Revision, after *policy.Policy) []policydiff.Change {
	if before == nil {
		return policydiff.Between(nil, after)
	}
	old, _, _, err := policyfile.Read(before.File, []byte(before.YAML))
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"warning: this sluice cannot read revision %d, so which counters restart is not known: %s\n",
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
