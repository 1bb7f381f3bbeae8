package cli

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/find"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// resetLine is the command that frees the key, empty if that cannot be printed.
func (o *manageOptions) resetLine(cmd *cobra.Command, k *find.Key) string {
	line := "sluice counters reset --rule " + shellWord(k.Rule)
	unfit := func(p result.KeyPart) bool { return p.Hidden || p.Value != nil && !printable.Is(*p.Value) }
	if slices.ContainsFunc(k.Key, unfit) {
		return ""
	}
	for _, part := range k.Parts {
		line += " --key " + shellWord(part)
	}
	return line + o.again(cmd)
}

// again are the flags that say whom to ask, as they were given.
func (o *manageOptions) again(cmd *cobra.Command) (text string) {
	for _, name := range []string{"server", "policy", "token-file", "ca", "cert", "cert-key", "proxy", "manage-token-file", "insecure"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			text += " --" + name + "=" + shellWord(f.Value.String())
		}
	}
	return text
}

// plainWord matches what a shell takes as it stands.
var plainWord = regexp.MustCompile(`^[-\w./:,@%+=]+$`)

// shellWord is a text as a shell reads it back.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

const resetHint = "give --rule with --key, or describe a request of the client for --rule or --all-rules, as for sluice counters find"

// resetClient resets the keys of a described client: in the rule, or in all rules where it
// has one that others do not share.
func (o *countersOptions) resetClient(cmd *cobra.Command) error {
	switch {
	case o.allRules == (o.subject.Rule != ""):
		return usageError(errors.New("one of --rule and --all-rules says what to reset"), resetHint)
	case len(o.subject.Key) > 0:
		return usageError(errors.New("--key does not go with the description of a request, which has the key"), resetHint)
	}
	r, a, err := o.asked(cmd, &o.request)
	if err != nil {
		return err
	}
	freed, err := find.Free(cmd.Context(), a, r, o.subject.Rule)
	var noKey *find.NoKeyError
	switch {
	case errors.As(err, &noKey) && noKey.Why != "":
		return withHint(err, requestHint)
	case errors.As(err, &noKey):
		return withHint(err, "sluice counters find shows a client's keys in all rules")
	case err != nil:
		return err
	}
	if err := o.output.print(cmd, freed, func(b *strings.Builder) { printFreed(b, freed) }); err != nil {
		return err
	}
	switch {
	case freed.Missed() > 0:
		return withHint(errors.New("not all counters were reset: their lines say why"), "sluice status shows the proxies")
	case !freed.Any():
		return errNothingReset
	}
	return nil
}

// printFreed prints what became of each key.
func printFreed(b *strings.Builder, r *find.Freed) {
	table := [][]string{{"RULE", "KEY", "PROXY", "ANSWER"}}
	for _, d := range r.Resets {
		key := d.Text()
		if d.Error != "" {
			table = append(table, []string{d.Rule, key, "", "failed: " + d.Error})
			continue
		}
		for _, cells := range answerCells(manage.OperationOf("reset"), d.Counters) {
			table = append(table, append([]string{d.Rule, key}, cells...))
		}
	}
	for _, f := range r.Failed {
		table = append(table, []string{"", "", f.Proxy, "failed: " + f.Error})
	}
	if len(table) == 1 {
		return
	}
	printTable(b, table)
	for _, d := range r.Resets {
		if d.Counters != nil && d.Note != "" { // the same for all rules of the quota service
			b.WriteString(printable.Text(d.Note) + "\n")
			return
		}
	}
}

var errNothingReset = withHint(errors.New("there was no such key: nothing was reset"),
	"sluice counters find shows a client's keys; top prints keys as --key takes them, one for each part")
