package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/footprint"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydoc"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// validateOptions are the flags of validate.
type validateOptions struct {
	file   string
	output output
}

// AddFlags adds the flags.
func (o *validateOptions) AddFlags(cmd *cobra.Command) {
	addPolicyFlag(cmd, &o.file)
	o.output.AddFlags(cmd)
}

func newValidateCommand() *cobra.Command {
	var o validateOptions
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check a policy and print every problem with its place",
		Long: `Check a policy exactly as the control plane and the filter do. Print every problem with
its file, line, column and path, and what would be right.`,
		Example: `  sluice validate -f policy.yaml
  sluice validate -f - < policy.yaml
  sluice validate -f policy.yaml --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return validate(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

// validation is what validate prints as JSON.
type validation struct {
	Valid    bool                 `json:"valid"`
	Rules    int                  `json:"rules,omitempty"`
	Priced   []pricedRule         `json:"priced,omitempty"`
	Memory   *footprint.Footprint `json:"memory,omitempty"`
	Problems []policyfile.Problem `json:"problems"`
	Warnings []policyfile.Problem `json:"warnings"`
}

func validate(cmd *cobra.Command, o *validateOptions) error {
	read, err := judgePolicy(cmd, o.file, true)
	var problems policyfile.Errors
	if err != nil && !errors.As(err, &problems) {
		return err
	}
	if o.output == outputJSON {
		v := validation{
			Valid: err == nil, Problems: api.Problems(problems), Warnings: api.Problems(read.warnings),
		}
		if read.policy != nil {
			v.Rules = len(read.policy.Rules)
			v.Priced = pricedRules(read.policy.Rules)
			memory := footprint.Of(read.policy, read.json())
			v.Memory = &memory
		}
		return errors.Join(printJSON(cmd.OutOrStdout(), v), err)
	}
	warn(cmd, read.warnings)
	if err != nil {
		return err
	}
	return outputText.print(cmd, nil, func(b *strings.Builder) {
		fmt.Fprintf(b, "%s is valid: %s\n", o.file, count(len(read.policy.Rules), "rule", "rules"))
		printPriced(b, pricedRules(read.policy.Rules))
		printMemory(b, footprint.Of(read.policy, read.json()))
	})
}

// pricedRule is a rule that charges prices, with its limits in units.
type pricedRule struct {
	Rule           string        `json:"rule"`
	Limits         []pricedLimit `json:"limits"`
	ThousandTokens int64         `json:"thousand_tokens"` // the most units that 1,000 tokens take
}

type pricedLimit struct {
	Units uint32 `json:"units"`
	Per   string `json:"per"`
}

// pricedRules are those of the rules that charge prices.
func pricedRules(rules []policy.Rule) (priced []pricedRule) {
	for i := range rules {
		r := &rules[i]
		if r.Mode == policy.ModeOff || len(r.Limits) == 0 || r.Settle == nil || len(r.Settle.Prices) == 0 {
			continue
		}
		p := pricedRule{Rule: r.Name, ThousandTokens: policy.ThousandTokens(r.Settle.Prices)}
		for _, l := range r.Limits {
			p.Limits = append(p.Limits, pricedLimit{l.Limit, policy.PeriodOf(l.Window)})
		}
		priced = append(priced, p)
	}
	return priced
}

// printPriced says how much the limits of rules that charge prices are.
func printPriced(b *strings.Builder, rules []pricedRule) {
	for _, r := range rules {
		var limits []string
		for _, l := range r.Limits {
			limits = append(limits, fmt.Sprintf("%d units per %s", l.Units, l.Per))
		}
		fmt.Fprintf(b, "rule %s charges prices: %s; 1,000 tokens take up to %d units\n", r.Rule,
			strings.Join(limits, ", "), r.ThousandTokens)
	}
}

// printMemory says what a policy's counters take in one Envoy.
func printMemory(b *strings.Builder, m footprint.Footprint) {
	if m.Counters == 0 {
		b.WriteString("it counts nothing\n")
		return
	}
	fmt.Fprintf(b, "%s for %s", count(m.Counters, "counter", "counters"), count(int(m.Keys), "live key", "live keys"))
	if m.Slots > 0 {
		fmt.Fprintf(b, " in %d slots\nexpect up to %s of memory in one Envoy; at worst %s, while the windows of renamed or "+
			"removed counters have not ended", m.Slots, kibibytes(m.Bytes), kibibytes(m.Bytes+m.VanishedBytes))
	}
	b.WriteByte('\n')
	if m.LeaseBytes > 0 {
		fmt.Fprintf(b, "of what to expect, %s hold what is leased, and %s count while the quota service is silent\n",
			kibibytes(m.LeaseBytes), kibibytes(m.StandbyBytes))
	}
	if m.HeldBytes > 0 {
		fmt.Fprintf(b, "and %d bytes for each running request and rule that holds for it\n", m.HeldBytes)
	}
	for _, of := range []struct {
		bytes uint64
		what  string
	}{
		{m.RuleBytes, "for its rules"}, {m.ExpressionBytes, "for regular expressions"}, {m.ScanBytes, "for reading answers"},
		{m.StatedBytes, "for what it states to the quota service"}, {m.DenialBytes, "for the keys denied most"},
	} {
		if of.bytes > 0 {
			fmt.Fprintf(b, "and at most %s %s in each of its workers\n", kibibytes(of.bytes), of.what)
		}
	}
}

// kibibytes is a size, of less than 1 MiB in KiB.
func kibibytes(bytes uint64) string {
	if bytes >= 1<<20 {
		return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64) + " MiB"
	}
	return strconv.FormatUint((bytes+1<<10-1)>>10, 10) + " KiB"
}

func newSchemaCommand() *cobra.Command {
	var ofTests bool
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the policy file, or of tests, for editors",
		Long: `Print the JSON Schema (draft 2020-12) of the policy file, or of a file of tests: editors
complete and check the file by it. The YAML language server takes it from a line at the
top of the file:

  # yaml-language-server: $schema=policy.schema.json

It accepts every valid policy, but sluice validate finds more problems.`,
		Example: `  sluice schema > policy.schema.json
  sluice schema --tests > test.schema.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema := policydoc.JSONSchema
			if ofTests {
				schema = policydoc.TestsSchema
			}
			text, err := schema()
			return printResource(cmd, text, err)
		},
	}
	cmd.Flags().BoolVar(&ofTests, "tests", false, "of a file of tests, for sluice test")
	return cmd
}
