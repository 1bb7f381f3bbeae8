package cli

import (
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/monitoring"
)

func newRenderGrafanaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "grafana",
		Short: "Write a Grafana dashboard to standard output",
		Long: `Write a Grafana dashboard to standard output, for a Prometheus that scrapes
/stats/prometheus of each Envoy, and /metrics of serve and quota.`,
		Example: `  sluice render grafana > sluice.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := monitoring.Dashboard()
			return printResource(cmd, text, err)
		},
	}
}

func newRenderPrometheusRulesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prometheus-rules",
		Short: "Write alert rules for Prometheus to standard output",
		Long: `Write alert rules to standard output, for a Prometheus that scrapes
/stats/prometheus of each Envoy, and /metrics of serve and quota. Set thresholds and
times to fit your traffic.`,
		Example: `  sluice render prometheus-rules > sluice.rules.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printResource(cmd, monitoring.Rules, nil)
		},
	}
}
