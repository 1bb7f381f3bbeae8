package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/kubernetes"
)

func newRenderKubernetesCommand() *cobra.Command {
	var o kubernetes.Options
	cmd := &cobra.Command{
		Use:   "kubernetes --image IMAGE -n NAMESPACE --proxies NAMESPACE[/LABEL=VALUE] [--quota-store URL]",
		Short: "Write the manifests that run serve and quota in Kubernetes",
		Long: `Write manifests to standard output: serve as a StatefulSet of one replica with a
volume and, with --quota-store, quota as a Deployment of two, each with a Service and
a NetworkPolicy, as a user without rights.

The files that they read are in two Secrets. sluice-tls is of type
kubernetes.io/tls, with a certificate for sluice-serve.NAMESPACE.svc and
sluice-quota.NAMESPACE.svc. The keys of sluice are named like the flags of serve
and quota: xds-client-ca and access, with --quota-store quota-domains, and what
--serve-file and --quota-file name.`,
		Example: `  sluice render kubernetes --image registry.example/sluice:v0.1.0 -n sluice --proxies edge --callers ci \
    --quota-store redis://redis.data:6379 --serve-file http-client-ca,node-names | kubectl apply -f -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFileFlags(newServeCommand(), "serve-file", o.ServeFiles); err != nil {
				return err
			}
			if err := checkFileFlags(newQuotaCommand(), "quota-file", o.QuotaFiles); err != nil {
				return err
			}
			text, err := kubernetes.Manifests(o)
			return printResource(cmd, text, err)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Image, "image", "", "`IMAGE` of the command (required)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "`NAMESPACE` of the resources (required)")
	flags.StringVar(&o.Storage, "storage", "4Gi", "`SIZE` of serve's volume")
	flags.StringSliceVar(&o.ServeFiles, "serve-file", nil, "`FLAG` of serve whose file is in the Secret sluice; may be repeated")
	flags.StringSliceVar(&o.QuotaFiles, "quota-file", nil, "`FLAG` of quota whose file is in the Secret sluice; may be repeated")
	flags.StringVar(&o.QuotaStore, "quota-store", "", "`URL` of the Redis of quota (default: serve counts in memory, and there is no quota)")
	flags.StringArrayVar(&o.Proxies, "proxies", nil, "`NAMESPACE[/LABEL=VALUE]` of pods that may reach xDS and quota; may be repeated (required)")
	flags.StringArrayVar(&o.Callers, "callers", nil, "`NAMESPACE[/LABEL=VALUE]` of pods that may reach the HTTP APIs; may be repeated (default: none)")
	return cmd
}

// checkFileFlags refuses what is no flag of the command with a file as its value.
func checkFileFlags(cmd *cobra.Command, flag string, names []string) error {
	for _, name := range names {
		switch name {
		case "tls-cert", "tls-key", "client-ca":
			return usageError(fmt.Errorf("--%s %s is there already", flag, name), "the certificate is in the Secret sluice-tls, client-ca is xds-client-ca")
		}
		found := cmd.Flags().Lookup(name)
		if found == nil {
			return usageError(fmt.Errorf("--%s %s: %s has no such flag", flag, name, cmd.Name()), "see sluice "+cmd.Name()+" --help")
		}
		if kind, _ := pflag.UnquoteUsage(found); kind != "FILE" {
			return usageError(errors.New("--"+flag+" "+name+" takes no file"), "see sluice "+cmd.Name()+" --help")
		}
	}
	return nil
}
