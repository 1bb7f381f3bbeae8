package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// resourceOptions are the flags of all custom resources.
type resourceOptions struct {
	file string
	envoy.Object
	envoy.Fetch
	targets      []string
	quotaCluster string
}

// AddFlags adds the flags. URLs and targets are what the product takes.
func (o *resourceOptions) AddFlags(cmd *cobra.Command, urls, targets string) {
	addPolicyFlag(cmd, &o.file)
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", envoy.ResourceName, "`NAME` of the resource")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "`NAMESPACE` of the resource (default: kubectl's)")
	f.StringVar(&o.URL, "url", "", "`URL` of the filter's binary: "+urls)
	f.StringVar(&o.SHA256, "sha256", "",
		"`DIGEST` of the image or of the file at the URL; if it is wrong, a running filter stops")
	f.StringVar(&o.PullSecret, "pull-secret", "", "`SECRET` in that namespace with the registry's credentials")
	f.StringArrayVar(&o.targets, "target", nil, targets)
	f.StringVar(&o.quotaCluster, "quota-cluster", "", "`NAME` of the proxies' cluster that leads to the quota service, "+
		"for rules of scope cluster (default: the policy's quota.cluster)")
}

// readPolicy returns the policy's text for a resource, and how its rules reach the quota
// service.
func (o *resourceOptions) readPolicy(cmd *cobra.Command) (text []byte, quota envoy.Quota, err error) {
	read, err := readPolicy(cmd, o.file, true)
	if err != nil {
		return nil, quota, err
	}
	if head, _ := policy.SplitPlacement(read.tree); len(head.Fields) > 0 {
		return nil, quota, withHint(
			errors.New("the policy has name or proxies, which are for sluice serve: this resource goes to proxies without it"),
			"remove them: the resource itself says which proxies it is for")
	}
	switch q := read.policy.Quota; {
	case q != nil:
		quota = envoy.Quota{Cluster: cmp.Or(o.quotaCluster, q.Cluster), Timeout: time.Duration(q.TimeoutNs)}
	case o.quotaCluster != "":
		return nil, quota, usageError(errors.New("--quota-cluster, but no rule of the policy has scope cluster"),
			"only such rules ask a quota service")
	}
	if !o.isPinned() {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: without --sha256 the owner of the URL decides what runs in the proxies, "+
			"and a change of policy may fetch another binary")
	}
	// JSON is written in a form that every reader of YAML reads alike.
	if tree, err := policy.ParseJSON(read.text); err == nil {
		return policy.AppendJSON(nil, tree), quota, nil
	}
	return bytes.TrimPrefix(read.text, []byte("\uFEFF")), quota, nil
}

// isPinned reports whether the proxies get only one binary, or none by a URL.
func (o *resourceOptions) isPinned() bool {
	return o.URL == "" || strings.HasPrefix(o.URL, "file:") || o.SHA256 != "" || strings.Contains(o.URL, "@sha256:")
}

// printResource prints what a builder made.
func printResource(cmd *cobra.Command, text []byte, err error) error {
	if err != nil {
		return usageError(err, cmd.CommandPath()+" --help shows examples")
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}

// renderIstioOptions are the flags of render istio.
type renderIstioOptions struct {
	resourceOptions
	kind, phase, mode, fail string
	configMap, wasm         string
	priority                *int32 // nil: none
	ports                   []int
	selector                []string
}

// AddFlags adds the flags.
func (o *renderIstioOptions) AddFlags(cmd *cobra.Command) {
	o.resourceOptions.AddFlags(cmd,
		"oci://REGISTRY/IMAGE:TAG, https://…, http://… or file:///PATH in the proxy's container "+
			"(required without --wasm-configmap)",
		"`KIND/NAME` it applies to: a Gateway; on waypoints only, a Service, a ServiceEntry or, in Istio's root namespace, "+
			"GatewayClass/istio-waypoint; may be repeated (default: the whole namespace)")
	f := cmd.Flags()
	f.StringVar(&o.configMap, "wasm-configmap", "", "`NAME` of a ConfigMap that the proxies' pods mount, with the "+
		"filter's binary inside, instead of --url; the output's comment says how")
	f.StringVar(&o.wasm, "wasm", "", "`FILE` of the filter for --wasm-configmap (default: the one inside this program, "+
		"written to the user's cache folder)")
	addWordFlag(cmd, &o.kind, "kind", "", "wasm-plugin",
		"`KIND` of resource: wasm-plugin, or traffic-extension (Istio 1.30 and later)",
		"wasm-plugin", "traffic-extension")
	f.StringArrayVar(&o.selector, "selector", nil,
		"`LABEL=VALUE` of the workloads to apply it to; may be repeated; not with --target")
	addWordFlag(cmd, &o.phase, "phase", "", "",
		"`PHASE` of the filter chain before which it runs: authn, authz or stats (default: after all of Istio's filters)",
		"authn", "authz", "stats")
	f.Func("priority", "`NUMBER` that orders plugins of one phase, highest first (default 0)", o.setPriority)
	addWordFlag(cmd, &o.mode, "mode", "", "",
		"`MODE` of traffic: client, server or client-and-server (default: both)",
		"client", "server", "client-and-server")
	f.IntSliceVar(&o.ports, "port", nil, "`PORT` of the service that is limited; may be repeated (default: all)")
	addWordFlag(cmd, &o.fail, "fail-strategy", "", "reload",
		"`STRATEGY` if the filter cannot run: reload, close or open",
		"reload", "close", "open")
}

func (o *renderIstioOptions) setPriority(text string) error {
	n, err := strconv.ParseInt(text, 0, 32)
	if err != nil {
		return errors.New("it is not a whole number of 32 bits")
	}
	priority := int32(n)
	o.priority = &priority
	return nil
}

func newRenderIstioCommand() *cobra.Command {
	var o renderIstioOptions
	cmd := &cobra.Command{
		Use:   "istio -f POLICY {--url URL | --wasm-configmap NAME} [--target KIND/NAME | --selector LABEL=VALUE]",
		Short: "Write a WasmPlugin or a TrafficExtension for Istio",
		Long: `Write a resource to standard output with which Istio loads the filter into its
proxies. The policy is in it as plain YAML, with its comments.

On a sidecar, --mode server limits only incoming requests. Without it, requests that the
application sends are limited too.`,
		Example: `  # On an ingress gateway of the Gateway API
  sluice render istio -f policy.yaml -n edge --target Gateway/edge \
    --url oci://registry.example/sluice:1.0.0 | kubectl apply -f -

  # Requests to port 8080 of the pods of one application, with the newer resource
  sluice render istio -f policy.yaml -n shop --selector app=shop --mode server --port 8080 \
    --kind traffic-extension --url file:///opt/sluice/sluice.wasm

  # Without a registry: the filter in a ConfigMap, which the output's comment says how to mount
  sluice render istio -f policy.yaml -n edge --target Gateway/edge --wasm-configmap sluice-1.0.0`,
		RunE: func(cmd *cobra.Command, _ []string) error { return renderIstio(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

var istioKinds = map[string]string{
	"wasm-plugin":       envoy.WasmPluginKind,
	"traffic-extension": envoy.TrafficExtensionKind,
}

func renderIstio(cmd *cobra.Command, o *renderIstioOptions) error {
	mount, err := o.mount()
	if err != nil {
		return err
	}
	selector, err := labels(o.selector)
	if err != nil {
		return err
	}
	text, quota, err := o.readPolicy(cmd)
	if err != nil {
		return err
	}
	constant := func(word string) string { return strings.ToUpper(strings.ReplaceAll(word, "-", "_")) }
	text, err = envoy.Istio(envoy.IstioOptions{
		Object: o.Object, Fetch: o.Fetch, Mount: mount, Policy: text, Quota: quota,
		Kind: istioKinds[o.kind], Selector: selector, Targets: o.targets, Ports: o.ports, Priority: o.priority,
		Phase: constant(o.phase), Mode: constant(o.mode), FailStrategy: "FAIL_" + constant(o.fail),
	})
	return printResource(cmd, text, err)
}

// mount is the ConfigMap that has the filter, empty if none is named.
func (o *renderIstioOptions) mount() (envoy.ConfigMap, error) {
	var m envoy.ConfigMap
	switch {
	case o.configMap == "" && o.wasm != "":
		return m, usageError(errors.New("--wasm goes with --wasm-configmap only"),
			"--url says where the proxies find the filter")
	case o.configMap == "" && o.URL == "":
		return m, usageError(errors.New("give --url or --wasm-configmap"),
			"the filter's URL, or a ConfigMap that the proxies mount")
	case o.configMap == "":
		return m, nil
	case o.URL != "":
		return m, usageError(errors.New("--url and --wasm-configmap exclude each other"),
			"the file of the ConfigMap has a URL of its own")
	}
	wasm, err := readFilter(o.wasm)
	if err != nil {
		return m, err
	}
	if len(wasm) > envoy.MaxConfigMap {
		return m, withHint(
			fmt.Errorf("the filter has %d bytes, but a ConfigMap holds at most %d", len(wasm), envoy.MaxConfigMap),
			"sluice image push puts a filter of any size into a registry, for --url")
	}
	m = envoy.ConfigMap{Name: o.configMap, File: o.wasm}
	if m.File == "" {
		m.File, err = writeFilter(wasm)
	}
	return m, err
}

// labels reads LABEL=VALUE.
func labels(texts []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range texts {
		label, value, ok := strings.Cut(text, "=")
		if !ok || label == "" {
			return nil, usageError(fmt.Errorf("--selector %q is not LABEL=VALUE", text), "for example --selector app=shop")
		}
		if _, ok := labels[label]; ok {
			return nil, usageError(fmt.Errorf("--selector %q: the label is given twice", text), "one label has one value")
		}
		labels[label] = value
	}
	return labels, nil
}

// renderEnvoyGatewayOptions are the flags of render envoy-gateway.
type renderEnvoyGatewayOptions struct {
	resourceOptions
	failOpen bool
}

// AddFlags adds the flags.
func (o *renderEnvoyGatewayOptions) AddFlags(cmd *cobra.Command) {
	o.resourceOptions.AddFlags(cmd,
		"oci://REGISTRY/IMAGE:TAG, https://… or http://…",
		"`KIND/NAME` it applies to, or KIND/NAME/SECTION: a Gateway, HTTPRoute or GRPCRoute of that namespace; "+
			"may be repeated")
	markRequired(cmd, "url", "target")
	cmd.Flags().BoolVar(&o.failOpen, "fail-open", false,
		"let requests through without a limit, and without a report, if the filter cannot run")
}

func newRenderEnvoyGatewayCommand() *cobra.Command {
	var o renderEnvoyGatewayOptions
	cmd := &cobra.Command{
		Use:   "envoy-gateway -f POLICY --url URL --target KIND/NAME",
		Short: "Write an EnvoyExtensionPolicy for Envoy Gateway",
		Long: `Write a resource to standard output with which Envoy Gateway loads the filter into its
proxies. The policy is in it as plain YAML, with its comments.

Change the binary and the policy one after the other: if a proxy has to fetch a new
binary and the new filter rejects the policy, the proxy answers 503. With --fail-open it
limits nothing.`,
		Example: `  sluice render envoy-gateway -f policy.yaml -n edge --target Gateway/edge \
    --url oci://registry.example/sluice:1.0.0 | kubectl apply -f -
  sluice render envoy-gateway -f policy.yaml -n shop --target HTTPRoute/shop \
    --url https://files.example/sluice.wasm --sha256 "$(sha256sum < sluice.wasm | cut -c1-64)"`,
		RunE: func(cmd *cobra.Command, _ []string) error { return renderEnvoyGateway(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

func renderEnvoyGateway(cmd *cobra.Command, o *renderEnvoyGatewayOptions) error {
	text, quota, err := o.readPolicy(cmd)
	if err != nil {
		return err
	}
	text, err = envoy.EnvoyGateway(envoy.EnvoyGatewayOptions{
		Object: o.Object, Fetch: o.Fetch, Policy: text, Quota: quota, Targets: o.targets, FailOpen: o.failOpen,
	})
	return printResource(cmd, text, err)
}
