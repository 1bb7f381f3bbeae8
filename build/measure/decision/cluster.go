package decision

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// clusterTime is how long measuring a cluster may take.
const clusterTime = 20 * time.Minute

// ClusterCommand is the subcommand for limits over all Envoys.
func ClusterCommand() *cobra.Command {
	b := &bench{warmUp: time.Second}
	var cases, docs string
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "What limits over all Envoys cost: into docs/cluster.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			which, err := regexp.Compile(cases)
			if err != nil {
				return err
			}
			return b.cluster(cmd.Context(), which, docs)
		},
	}
	b.flags(cmd.Flags(), &cases, &docs, "cluster.md")
	cmd.Flags().StringVar(&b.sluice, "sluice", "build/out/sluice", "`path` of the command line")
	return cmd
}

func (b *bench) cluster(ctx context.Context, which *regexp.Regexp, docs string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, clusterTime)
	defer cancel()
	if b.envoy == "" {
		if b.envoy, err = proc.Find(); err != nil {
			return err
		}
	}
	if err := b.start(); err != nil {
		return err
	}
	defer b.close()
	found, err := b.measureCluster(ctx, which)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\n%s\n%s", found.machine(), found.bars(), found.shares())
	if docs == "" {
		return nil
	}
	return found.page().Write(docs)
}

func (b *bench) measureCluster(ctx context.Context, which *regexp.Regexp) (f clusterFigures, err error) {
	f = clusterFigures{Cores: len(b.allCores), Rounds: b.rounds}
	if f.Processor, err = machine.Processor(); err != nil {
		return f, err
	}
	if f.Envoy, err = proc.Version(ctx, b.envoy); err != nil {
		return f, err
	}
	began := time.Now()
	before, err := machine.UsedTime()
	if err != nil {
		return f, err
	}
	for _, s := range shares() {
		if !which.MatchString(s.name) {
			continue
		}
		got, err := b.share(ctx, s)
		if err != nil {
			return f, fmt.Errorf("measure %s: %w", s.name, err)
		}
		f.Shares = append(f.Shares, got)
	}
	if which.MatchString("core") {
		if f.Core, err = b.core(ctx); err != nil {
			return f, fmt.Errorf("measure core: %w", err)
		}
	}
	if which.MatchString("used") {
		if f.Used, err = b.demand(ctx); err != nil {
			return f, fmt.Errorf("measure used: %w", err)
		}
	}
	if len(f.Shares)+len(f.Core)+len(f.Used) == 0 {
		return f, errors.New("no case has such a name")
	}
	after, err := machine.UsedTime()
	f.Busy = round(float64(after-before) / float64(time.Since(began)) / float64(f.Cores))
	f.Minutes = round(time.Since(began).Minutes())
	return f, err
}
