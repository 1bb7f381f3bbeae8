package cli

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/report"
)

// suggestOptions are the flags of suggest.
type suggestOptions struct {
	log    logFlags
	output output
	key    []string
	per    []string
	most   share
	wasm   string
}

// AddFlags adds the flags.
func (o *suggestOptions) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&o.key, "key", nil, "`PART` of what clients are told apart by, of "+strings.Join(replay.KeyForms(), ", ")+
		"; may be given again (required)")
	flags.StringSliceVar(&o.per, "per", []string{"1m", "1h"}, "`PERIODS` to find limits for")
	o.most = 0.001
	flags.Var(&o.most, "deny-at-most", "share of requests, and of clients, that the limits may deny")
	addWasmFlag(cmd, &o.wasm, "")
	o.log.AddFlags(cmd)
	o.output.AddFlags(cmd)
}

func newSuggestCommand() *cobra.Command {
	var o suggestOptions
	return with(&cobra.Command{
		Use:   "suggest LOG... --key PART",
		Short: "Suggest limits that the requests in access logs would have stayed within",
		Long: `Read access logs, count what each client uses in each period, and print a policy in
shadow mode whose limits would have denied no more than a share of the requests and
of the clients. Comments say how much clients use, and what the policy would have
denied, as the compiled filter decides. Up to a hundredth of the clients, each of
which uses more than three times what any other does, sets no limit and is counted
apart.

Use is counted in periods aligned to the clock, as a fixed_window counts, and limits are
rounded up to two digits. The logs are read twice; see sluice replay for which logs.`,
		Example: `  sluice suggest access.log --key header:x-user-id > shadow.yaml
  sluice suggest access.log*.gz --key client_ip --per 1s,1m,1h --deny-at-most 0.01%
  sluice replay access.log -f shadow.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: o.run,
	}, o.AddFlags)
}

func (o *suggestOptions) run(cmd *cobra.Command, logs []string) error {
	read, err := o.log.options(cmd, logs, o.wasm)
	if err != nil {
		return err
	}
	s, err := replay.Suggest(cmd.Context(), replay.SuggestOptions{Options: read, Key: o.key, Periods: o.per, Most: float64(o.most)})
	var problems policyfile.Errors
	switch {
	case errors.As(err, &problems):
		return usageError(err, "--key and --per are as a policy has them: --key header:x-user-id --per 1m,1h")
	case err != nil:
		return logError(err)
	}
	return o.output.print(cmd, s, func(w io.Writer) error { return report.Policy(w, s) })
}
