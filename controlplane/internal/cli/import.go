package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func newImportCommand() *cobra.Command {
	cmd := group("import", "Translate another rate limiter's configuration into a policy",
		newImportEnvoyRatelimitCommand(), newImportLocalRatelimitCommand(), newImportNginxCommand(),
		newImportIngressNginxCommand())
	cmd.Long = `Translate another rate limiter's configuration into a policy, on standard output.

Notes on standard error, and comments in the policy, say what the policy does differently.
A rule is off if a policy cannot say the same, with a comment that says why.`
	return cmd
}

// envoyOptions are the flags of the imports of Envoy.
type envoyOptions struct {
	importer.EnvoyOptions
	routes string
	scope  policy.Scope
}

// addFlags adds the flags.
func (o *envoyOptions) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.routes, "routes", "", "Envoy configuration `FILE` with the rate_limits of its routes")
	flags.StringVar(&o.Listener, "listener", "",
		"`NAME` or IP:PORT of the listener, or name of its routes, if several have limits")
	flags.StringToStringVar(&o.Keys, "key", nil,
		"`KEY=PART` of a request that a descriptor's key stands for: header:NAME, query:NAME, client_ip, path, method or "+
			"host; may be repeated")
	addImportScope(cmd, &o.scope)
}

// addRoutes reads the file of the routes.
func (o *envoyOptions) addRoutes(cmd *cobra.Command) error {
	if o.routes == "" {
		return nil
	}
	f, err := readImport(cmd, o.routes)
	o.Routes = &f
	return err
}

// addImportScope adds the flag that all imports have.
func addImportScope(cmd *cobra.Command, scope *policy.Scope) {
	addWordFlag(cmd, (*string)(scope), "scope", "", string(policy.ScopeProxy),
		"`SCOPE` of the rules: proxy, each Envoy counts for itself; or cluster, all count together, which needs a quota "+
			"service", string(policy.ScopeProxy), string(policy.ScopeCluster))
}

func newImportEnvoyRatelimitCommand() *cobra.Command {
	var o envoyOptions
	cmd := &cobra.Command{
		Use:   "envoy-ratelimit (FILE|-)...",
		Short: "Translate a configuration of envoyproxy/ratelimit",
		Long: `Translate the files of one domain of the envoyproxy/ratelimit service into a policy;
- is standard input.

The service knows only keys, such as remote_address. The rate_limits of Envoy's
routes say which part of a request a key stands for: give the file with them by
--routes. Without it, --key says what a key stands for, or it is what Envoy commonly
sends under this key. Any other key is guessed to be a header, such as x-user for
x_user, and a note says so. A rule is off if Envoy's routes choose the value of its
key, such as generic_key. A BackendTrafficPolicy needs no routes.`,
		Example: `  sluice import envoy-ratelimit config.yaml --routes envoy.yaml > policy.yaml
  sluice import envoy-ratelimit config.yaml --key user=header:x-user-id --key tenant=query:tenant`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importFrom(cmd, args, func(files []importer.File) (importer.Imported, error) {
				if err := o.addRoutes(cmd); err != nil {
					return importer.Imported{}, err
				}
				return importer.EnvoyRatelimit(files, o.scope, o.EnvoyOptions)
			})
		},
	}
	o.addFlags(cmd)
	return cmd
}

func newImportLocalRatelimitCommand() *cobra.Command {
	var o envoyOptions
	cmd := &cobra.Command{
		Use:   "local-ratelimit (FILE|-)",
		Short: "Translate a configuration of Envoy's local rate limit filter",
		Long: `Translate the configuration of Envoy's local rate limit filter into a policy; - is
standard input. The file is a configuration or dump of Envoy, a part of one (a
listener, a route or the filter), an EnvoyFilter or a BackendTrafficPolicy. If the
routes are not in the listener's file, give them by --routes. If the file has only the
filter, --routes and --key say what the keys of its descriptors stand for, as in import
envoy-ratelimit.`,
		Example: `  sluice import local-ratelimit envoy.yaml --listener 0.0.0.0:10000 > policy.yaml
  sluice import local-ratelimit filter.yaml --key client_id=header:x-client-id`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importFrom(cmd, args, func(files []importer.File) (importer.Imported, error) {
				if err := o.addRoutes(cmd); err != nil {
					return importer.Imported{}, err
				}
				return importer.LocalRatelimit(files[0], o.scope, o.EnvoyOptions)
			})
		},
	}
	o.addFlags(cmd)
	return cmd
}

func newImportNginxCommand() *cobra.Command {
	var scope policy.Scope
	cmd := &cobra.Command{
		Use:   "nginx (FILE|-)...",
		Short: "Translate the limit_req and limit_conn of nginx",
		Long: `Translate the limit_req and limit_conn of nginx' configurations into a policy; - is
standard input. A file is an nginx.conf, or a part of one such as a file in conf.d.
Its includes are read, relative to its folder.`,
		Example: `  sluice import nginx /etc/nginx/nginx.conf > policy.yaml
  sluice import nginx conf.d/zones.conf conf.d/shop.conf --scope cluster`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			include := func(file, pattern string) ([]importer.File, error) { return readIncludes(cmd, file, pattern) }
			return importFrom(cmd, args, func(files []importer.File) (importer.Imported, error) {
				return importer.Nginx(files, scope, include)
			})
		},
	}
	addImportScope(cmd, &scope)
	return cmd
}

func newImportIngressNginxCommand() *cobra.Command {
	var scope policy.Scope
	cmd := &cobra.Command{
		Use:   "ingress-nginx (FILE|-)...",
		Short: "Translate the annotations of ingress-nginx about limits",
		Long: `Translate the annotations of Ingress objects by which ingress-nginx limits requests
into a policy: limit-rps, limit-rpm, limit-burst-multiplier, limit-connections and
limit-allowlist or limit-whitelist; - is standard input. Give all Ingresses of the
controller, because they take requests from each other. Other objects are ignored.`,
		Example: `  kubectl get ingress -A -o yaml | sluice import ingress-nginx - > policy.yaml`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importFrom(cmd, args, func(files []importer.File) (importer.Imported, error) {
				return importer.IngressNginx(files, scope)
			})
		},
	}
	addImportScope(cmd, &scope)
	return cmd
}

// readIncludes reads the files that an include of nginx names. Those that are absent are left out.
func readIncludes(cmd *cobra.Command, file, pattern string) (files []importer.File, err error) {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(file), pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("include %s: %w", pattern, err)
	}
	for _, name := range names {
		f, err := readImport(cmd, name)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// importFrom reads the files, imports them, and prints the policy and the notes.
func importFrom(
	cmd *cobra.Command, names []string, run func(files []importer.File) (importer.Imported, error),
) error {
	var files []importer.File
	for _, name := range names {
		f, err := readImport(cmd, name)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	made, err := run(files)
	for i := range made.Notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "note:", printable.Text(made.Notes[i].String()))
	}
	var usage *importer.UsageError
	switch {
	case errors.As(err, &usage):
		return usageError(err, usage.Hint)
	case errors.Is(err, importer.ErrNothing):
		return fmt.Errorf("import %s: %w", strings.Join(names, ", "), err)
	case errors.Is(err, importer.ErrFault):
		return withHint(err, "please report it")
	case err != nil:
		return err
	}
	_, err = cmd.OutOrStdout().Write(made.Policy)
	return err
}

func readImport(cmd *cobra.Command, name string) (importer.File, error) {
	text, shown, err := readText(cmd, "configuration", name, true)
	return importer.File{Name: shown, Text: text}, err
}
