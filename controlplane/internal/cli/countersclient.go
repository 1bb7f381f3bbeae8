package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/answer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// clientKey is a rule with the key that a described client has in it, at the proxies that
// say so. Proxies that run other policies may have the client by other keys.
type clientKey struct {
	Rule   string           `json:"rule"`
	Why    string           `json:"why,omitempty"`    // why the rule is not for the described request
	Only   string           `json:"only,omitempty"`   // which requests it is for, where the description does not say
	NoKey  string           `json:"no_key,omitempty"` // why the client has no counter in it
	Key    []answer.KeyPart `json:"key,omitempty"`    // without the values that are credentials
	Common bool             `json:"common,omitempty"` // nothing of the key is the client's: others have it too
	Error  string           `json:"error,omitempty"`  // why the counter is not known
	Reset  string           `json:"reset,omitempty"`  // the command that frees it; none prints a credential

	Counters []clientCounter `json:"counters,omitempty"`

	parts  []string          // as --key takes them
	cost   uint32            // of the described request
	limits []string          // that it says
	denied bool              // by lack of a key
	exempt bool              // as the described request is
	hashes map[string]string // by proxy
}

// clientCounter is what one proxy, or the quota service, has counted of a key.
type clientCounter struct {
	manage.Asked
	Allowed  *bool           `json:"allowed,omitempty"` // whether the request would be now, by this rule
	Reason   string          `json:"reason,omitempty"`
	RetryMs  *int64          `json:"retry_after_ms,omitempty"`
	Override string          `json:"override,omitempty"`
	Windows  []answer.Window `json:"windows,omitempty"`
	Holds    *int64          `json:"holds,omitempty"`  // units that a proxy has leased
	Hash     string          `json:"hash,omitempty"`   // of the key, as counters top shows it
	Denied   *uint32         `json:"denied,omitempty"` // times lately, if the key is one of those that top shows

	row manage.Row
}

// clientKeys finds the keys of the client that the request describes, in all rules of all
// proxies. Failed are the proxies that did not say.
func (o *manageOptions) clientKeys(cmd *cobra.Command, described *requestOptions) (keys []*clientKey, failed []manage.Asked, a *asker, err error) {
	r, err := described.request()
	if err != nil {
		return nil, nil, nil, err
	}
	r.Keys = true
	rows, a, err := o.ask(cmd, r)
	if err != nil {
		return nil, nil, nil, err
	}
	for i := range rows {
		row := &rows[i]
		if row.Error != "" {
			failed = append(failed, row.Asked)
			continue
		}
		for j := range row.Rules {
			if said := keyOf(&row.Rules[j]); said != nil {
				said.leaveOpen(r)
				keys = addKey(keys, said, row.Proxy, row.Rules[j].Hash)
			}
		}
	}
	for _, k := range keys {
		if k.NoKey == "" {
			k.Reset = o.resetLine(cmd, k)
		}
		for i := range k.Key {
			if k.Key[i].Hidden {
				k.Key[i].Value = nil
			}
		}
	}
	return keys, failed, a, nil
}

// keyOf is what an explained rule says of the client, nil where the rule is off.
func keyOf(r *answer.ExplainedRule) *clientKey {
	k := &clientKey{Rule: r.Rule, NoKey: r.NoKey, Key: r.Key, Common: r.Common, cost: 1, hashes: map[string]string{}}
	switch {
	case r.Outcome == answer.Matches:
		k.denied = r.Reason == "missing_key" && r.Mode != string(policy.ModeShadow)
		if r.Cost != nil {
			k.cost = *r.Cost
		}
		k.limits = saidLimits(r.Windows)
	case r.NoKey == "" && r.Hash == "":
		return nil
	case r.NoKey == "" || r.Outcome != answer.NotKnown && r.Outcome != answer.LacksKey:
		k.Why = r.Why
	}
	k.exempt = r.Outcome == answer.Exempted
	for _, p := range r.Key {
		value := p.Value
		if p.Missing {
			value = nil
		}
		k.parts = append(k.parts, policy.PartText(value))
	}
	return k
}

// leaveOpen says which requests the rule is for, in place of why it is not for what stands for
// a method, host or path that the description does not give: a client is described, not one
// request.
func (k *clientKey) leaveOpen(r *simulate.Request) {
	for _, of := range []struct{ given, condition, standIn string }{
		{r.Method, "methods", "GET"}, {r.Host, "hosts", "nothing"}, {r.Path, "paths", "/"},
	} {
		wanted, fails := strings.CutPrefix(k.Why, of.condition+": "+of.standIn+" is not one of ")
		if fails && of.given == "" {
			k.Only, k.Why = of.condition+" "+wanted, ""
		}
	}
}

// saidLimits are the limits that the described request says, none if all are the defaults.
func saidLimits(windows []answer.Window) (limits []string) {
	says := false
	for i := range windows {
		if w := &windows[i]; w.LimitFrom != "" {
			limits = append(limits, strconv.FormatUint(uint64(*w.Limit), 10))
			says = says || w.LimitIs != answer.LimitDefault
		}
	}
	if !says {
		return nil
	}
	return limits
}

// addKey adds what a proxy says to what others have said alike.
func addKey(keys []*clientKey, said *clientKey, proxy, hash string) []*clientKey {
	at := slices.IndexFunc(keys, func(k *clientKey) bool {
		return k.Rule == said.Rule && k.Why == said.Why && k.Only == said.Only && k.NoKey == said.NoKey && slices.Equal(k.parts, said.parts)
	})
	if at < 0 {
		at, keys = len(keys), append(keys, said)
	}
	keys[at].hashes[proxy] = hash
	return keys
}

// onKey does an operation on one of the client's keys. That it failed is no reason to leave
// out the others.
func (a *asker) onKey(ctx context.Context, op manage.Operation, s manage.Subject) (report *api.Counters, failed string, err error) {
	query, err := op.Query(s)
	if err == nil {
		report, err = a.counters(ctx, op, query)
	}
	if err != nil && !errors.Is(err, errInterrupted) {
		return nil, err.Error(), nil
	}
	return report, "", err
}

// read adds the counters of the key.
func (k *clientKey) read(ctx context.Context, a *asker) (err error) {
	var report *api.Counters
	report, k.Error, err = a.onKey(ctx, operationOf("peek"), manage.Subject{
		Rule: k.Rule, Key: k.parts, N: strconv.FormatUint(uint64(k.cost), 10), Limits: k.limits,
	})
	if report == nil {
		return err
	}
	if report.Quota != nil {
		k.add(manage.Row{Asked: manage.Asked{Proxy: quotaService}, Answer: *report.Quota})
	}
	for _, r := range report.Proxies {
		if _, has := k.hashes[r.Proxy]; has {
			k.add(r)
		}
	}
	return nil
}

func (k *clientKey) add(r manage.Row) {
	c := clientCounter{Asked: r.Asked, Allowed: r.Allowed, RetryMs: r.RetryMs, Holds: r.Value, Hash: k.hashes[r.Proxy], row: r}
	for _, v := range r.Rules { // one
		c.Reason, c.Override, c.Windows = v.Reason, v.Override, v.Windows
	}
	k.Counters = append(k.Counters, c)
}

// denies reports whether the rule denies the client now, in requests that it is for. One
// that exempts the described request says nothing of the client.
func (k *clientKey) denies() bool {
	return k.denied || !k.exempt && slices.ContainsFunc(k.Counters, func(c clientCounter) bool { return c.Allowed != nil && !*c.Allowed })
}

// isCounted reports whether any proxy counts the key: it does not where the key is unlimited.
func (k *clientKey) isCounted() bool {
	return slices.ContainsFunc(k.Counters, func(c clientCounter) bool { return len(c.Windows) > 0 })
}

// resetLine is the command that frees the key, empty if that cannot be printed.
func (o *manageOptions) resetLine(cmd *cobra.Command, k *clientKey) string {
	line := "sluice counters reset --rule " + shellWord(k.Rule)
	unfit := func(p answer.KeyPart) bool { return p.Hidden || p.Value != nil && !printable.Is(*p.Value) }
	if slices.ContainsFunc(k.Key, unfit) {
		return ""
	}
	for _, part := range k.parts {
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

func operationOf(name string) manage.Operation {
	return manage.Operations[slices.IndexFunc(manage.Operations, func(op manage.Operation) bool { return op.Name == name })]
}

// clientReset is a key that reset has found, and what became of it.
type clientReset struct {
	Rule  string           `json:"rule"`
	Key   []answer.KeyPart `json:"key"`
	Error string           `json:"error,omitempty"`
	*api.Counters
}

// resetReport is what reset prints as JSON of a described client.
type resetReport struct {
	Resets []clientReset  `json:"resets"`
	Failed []manage.Asked `json:"failed,omitempty"` // proxies that did not say their keys
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
	report := resetReport{Resets: []clientReset{}, Failed: failed}
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
		report.Resets = append(report.Resets, one)
	}
	if err := o.output.print(cmd, &report, report.print); err != nil {
		return err
	}
	return report.judge()
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

func (r *resetReport) print(b *strings.Builder) {
	table := [][]string{{"RULE", "KEY", "PROXY", "ANSWER"}}
	for _, d := range r.Resets {
		key := keySentence(d.Key)
		if d.Error != "" {
			table = append(table, []string{d.Rule, key, "", "failed: " + d.Error})
			continue
		}
		for _, cells := range answerCells(operationOf("reset"), d.Counters) {
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

// judge is the error where something failed, or where nothing was reset.
func (r *resetReport) judge() error {
	unknown, reset := len(r.Failed), false
	for _, d := range r.Resets {
		if d.Error != "" || slices.ContainsFunc(d.Proxies, func(r manage.Row) bool { return r.Error != "" || r.Silent != "" }) {
			unknown++
			continue
		}
		reset = reset || wasReset(d.Counters)
	}
	switch {
	case unknown > 0:
		return withHint(errors.New("not all counters were reset: their lines say why"), "sluice status shows the proxies")
	case !reset:
		return errNothingReset
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

var errNothingReset = withHint(errors.New("there was no such key: nothing was reset"),
	"sluice counters find shows a client's keys; top prints keys as --key takes them, one for each part")
