package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/footprint"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

type validateOptions struct {
	policyInput
	output output
}

func newValidateCommand() *cobra.Command {
	var o validateOptions
	return with(&cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check a policy and print every problem with its place",
		Long: `Check a policy exactly as the control plane and the filter do. Every problem is
printed with file, line, column, path and what would be right.`,
		Example: `  sluice validate -f policy.yaml
  sluice validate -f - < policy.yaml
  sluice validate -f policy.yaml --output json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return validate(cmd, o) },
	}, o.AddFlags, o.output.AddFlags)
}

// validation is what validate prints as JSON.
type validation struct {
	Valid    bool                 `json:"valid"`
	Rules    int                  `json:"rules,omitempty"`
	Memory   *footprint.Footprint `json:"memory,omitempty"`
	Problems []policyfile.Problem `json:"problems"`
	Warnings []policyfile.Problem `json:"warnings"`
}

func validate(cmd *cobra.Command, o validateOptions) error {
	read, err := o.judge(cmd)
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
			memory := footprint.Of(read.policy)
			v.Memory = &memory
		}
		return errors.Join(printJSON(cmd.OutOrStdout(), v), err)
	}
	warn(cmd, read.warnings)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s\n", o.file, count(len(read.policy.Rules), "rule", "rules"))
	return printMemory(cmd.OutOrStdout(), footprint.Of(read.policy))
}

// printMemory says what a policy's counters take in one Envoy.
func printMemory(w io.Writer, m footprint.Footprint) error {
	if m.Counters == 0 {
		_, err := fmt.Fprintln(w, "it counts nothing")
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `%s for %s in %d slots
expect up to %s of memory in one Envoy; at worst %s, while the windows of renamed or removed counters have not ended
`, count(m.Counters, "counter", "counters"), count(int(m.Keys), "live key", "live keys"), m.Slots,
		kibibytes(m.Bytes), kibibytes(m.Bytes+m.VanishedBytes))
	if m.LeaseBytes > 0 {
		fmt.Fprintf(&b, "of what to expect, %s hold what is leased, and %s count while the quota service is silent\n",
			kibibytes(m.LeaseBytes), kibibytes(m.StandbyBytes))
	}
	if m.HeldBytes > 0 {
		fmt.Fprintf(&b, "and %d bytes for each running request and rule that holds for it\n", m.HeldBytes)
	}
	for _, of := range []struct {
		bytes, least uint64
		what         string
	}{
		{m.ExpressionBytes, 1, "for regular expressions"}, {m.ScanBytes, 1, "for reading answers"},
		{m.StatedBytes, 1 << 20, "for what it states to the quota service"},
		{m.DenialBytes, 1 << 20, "for the keys denied most"},
	} {
		if of.bytes >= of.least {
			fmt.Fprintf(&b, "and at most %s %s in each of its workers\n", kibibytes(of.bytes), of.what)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// kibibytes is a size, of less than 1 MiB in KiB.
func kibibytes(bytes uint64) string {
	if bytes >= 1<<20 {
		return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64) + " MiB"
	}
	return strconv.FormatUint((bytes+1<<10-1)>>10, 10) + " KiB"
}
