package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// clientReset is a key that reset has found, and what became of it.
type clientReset struct {
	Rule  string           `json:"rule"`
	Key   []answer.KeyPart `json:"key"`
	Error string           `json:"error,omitempty"`
	*api.Counters
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
	keys, failed, a, err := o.clientKeys(cmd, &o.request)
	if err != nil {
		return err
	}
	if !o.allRules {
		if keys, err = keysOf(o.subject.Rule, keys, failed); err != nil {
			return err
		}
	}
	done := []clientReset{}
	for _, k := range keys {
		if k.NoKey != "" || o.allRules && k.Common {
			continue
		}
		if err := k.read(cmd.Context(), a); err != nil {
			return err
		}
		if k.Error == "" && !k.isCounted() {
			continue // an unlimited key has no counter
		}
		one := clientReset{Rule: k.Rule, Key: k.Key}
		if one.Counters, one.Error, err = a.onKey(cmd.Context(), o.op, manage.Subject{Rule: k.Rule, Key: k.parts}); err != nil {
			return err
		}
		done = append(done, one)
	}
	value := struct {
		Resets []clientReset  `json:"resets"`
		Failed []manage.Asked `json:"failed,omitempty"`
	}{done, failed}
	if err := o.output.print(cmd, &value, func(b *strings.Builder) { o.printResets(b, done, failed) }); err != nil {
		return err
	}
	return o.judgeResets(done, failed)
}

// keysOf are the keys in one rule. It is an error if no proxy has the rule, or has a key of
// the client in it.
func keysOf(rule string, keys []*clientKey, failed []manage.Asked) (own []*clientKey, err error) {
	noKey := ""
	for _, k := range keys {
		switch {
		case k.Rule != rule:
		case k.NoKey != "":
			noKey = k.NoKey
		default:
			own = append(own, k)
		}
	}
	switch {
	case len(own) > 0 || len(failed) > 0:
		return own, nil
	case noKey != "":
		return nil, withHint(fmt.Errorf("rule %q has no key of this client: %s", rule, noKey), requestHint)
	}
	return nil, withHint(fmt.Errorf("there is no rule %q, or it is off", rule), "sluice counters find shows a client's keys in all rules")
}

func (o *countersOptions) printResets(b *strings.Builder, done []clientReset, failed []manage.Asked) {
	table := [][]string{{"RULE", "KEY", "PROXY", "ANSWER"}}
	for _, d := range done {
		key := keySentence(d.Key)
		if d.Error != "" {
			table = append(table, []string{d.Rule, key, "", "failed: " + d.Error})
			continue
		}
		for _, cells := range answerCells(o.op, d.Counters) {
			table = append(table, append([]string{d.Rule, key}, cells...))
		}
	}
	for _, f := range failed {
		table = append(table, []string{"", "", f.Proxy, "failed: " + f.Error})
	}
	if len(table) == 1 {
		return
	}
	printTable(b, table)
	for _, d := range done {
		if d.Counters != nil && d.Note != "" { // the same for all rules of the quota service
			b.WriteString(printable.Text(d.Note) + "\n")
			return
		}
	}
}

// judgeResets is the error where something failed, or where nothing was reset.
func (o *countersOptions) judgeResets(done []clientReset, failed []manage.Asked) error {
	unknown, reset := len(failed), false
	for _, d := range done {
		if d.Error != "" || slices.ContainsFunc(d.Proxies, func(r manage.Row) bool { return r.Error != "" || r.Silent != "" }) {
			unknown++
			continue
		}
		reset = reset || wasReset(d.Counters)
	}
	switch {
	case unknown > 0:
		return withHint(errors.New("not all counters were reset: see above"), "sluice status shows the proxies")
	case !reset:
		return errNothingReset()
	}
	return nil
}

// wasReset reports whether anybody had the key.
func wasReset(report *api.Counters) bool {
	if report.Quota != nil {
		return *report.Quota.Value > 0
	}
	return slices.ContainsFunc(report.Proxies, func(r manage.Row) bool { return r.Value != nil && *r.Value > 0 })
}

func errNothingReset() error {
	return withHint(errors.New("there was no such key: nothing was reset"),
		"sluice counters find shows a client's keys; top prints keys as --key takes them, one for each part")
}
