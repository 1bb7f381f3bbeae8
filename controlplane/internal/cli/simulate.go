package cli

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	filterOptions
	requests string
	workers  int
	proxies  int
	seed     uint64
}

// AddFlags adds the flags.
func (o *simulateOptions) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.filterOptions.AddFlags(cmd, "policy `FILE`", "")
	markRequired(cmd, "file")
	flags.StringVarP(&o.requests, "requests", "r", "-", "`FILE` of requests, one JSON object a line; - = standard input")
	flags.IntVar(&o.workers, "workers", 1, "`NUMBER` of workers that share the counters; requests go to them in turn")
	flags.IntVar(&o.proxies, "proxies", 1, "`NUMBER` of proxies, each with --workers workers; requests go to them in turn")
	flags.Uint64Var(&o.seed, "seed", 1, "seed `NUMBER` of the counter tables' hash, at least 1")
}

func newSimulateCommand() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate -f POLICY [-r REQUESTS.jsonl]",
		Short: "Show what the filter decides for requests at given times",
		Long: `Run the compiled filter over requests with given times, without a proxy, and
print each decision. It reads one JSON object a line and writes one a line.

A request needs only a time: at_ms or at_ns since the Unix epoch, or at in
RFC 3339. It may have method, host, path, headers, client_ip, route, metadata,
properties, the proxy and the worker that serve it, and fail: get, set or cas:N make
calls of the filter into the proxy fail, and with quota the quota service cannot be
reached. Times may step back.

A request with an id is answered by later lines: answer, its id, with status and
headers, chunk, trailers, end and reset, in that order on one line or on several.
Other requests are answered 200 at once. If a rule holds units for one, its client
leaves after the rule's hold.

Each proxy has counters of its own. Rules of scope cluster lease from one quota
service, which answers at once.

A line with op acts on counters: hit, peek, get, inc, set, reset and expires_at on
one key of a rule (rule, key, n, limits, window), clean and stats on a rule or on all. Op
policy changes the policy; its file must be in the folder of the requests or below it.

A line has at most 1 MiB, all lines together 128 MiB and a million requests. If a line
is not valid, the output is empty and the error says what is wrong with it.`,
		Example: `  echo '{"at_ms":0,"headers":{"x-user-id":"alice"}}' | sluice simulate -f policy.yaml
  (echo '{"at_ms":0,"id":"a"}'; echo '{"at_ms":9,"answer":"a","status":401,"end":true}') |
    sluice simulate -f policy.yaml
  echo '{"at_ms":0,"op":"set","rule":"per-user","key":["alice"],"n":5}' | sluice simulate -f policy.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.AddFlags(cmd)
	return cmd
}

func (o *simulateOptions) run(cmd *cobra.Command) error {
	switch {
	case o.workers < 1 || o.workers > maxWorkers:
		return usageError(fmt.Errorf("--workers %d is not from 1 to %d", o.workers, maxWorkers), "the default is 1")
	case o.proxies < 1 || o.proxies > maxWorkers/o.workers:
		return usageError(fmt.Errorf("--proxies %d with --workers %d: all proxies together have from 1 to %d workers",
			o.proxies, o.workers, maxWorkers), "the default is 1")
	case o.seed == 0:
		return usageError(errors.New("--seed must be at least 1"), "give a number from 1")
	case o.policy == "-":
		return usageError(errStdin, "give the policy as a file; requests come from standard input without -r")
	}
	s, err := o.options(cmd)
	if err != nil {
		return err
	}
	s.Workers, s.Proxies = o.workers, o.proxies
	s.Seed = o.seed
	s.Requests, s.Dir = cmd.InOrStdin(), "."
	if o.requests != "-" {
		file, err := input.Open(cmd.Context(), o.requests)
		if errors.Is(err, input.ErrInterrupted) {
			return err
		}
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		defer file.Close()
		s.Requests, s.Dir = file, filepath.Dir(o.requests)
	}
	return simulate.Run(cmd.Context(), s, cmd.OutOrStdout())
}
