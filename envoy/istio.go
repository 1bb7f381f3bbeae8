package envoy

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Kinds of resources that add a filter to Istio's proxies.
const (
	WasmPluginKind       = "WasmPlugin"
	TrafficExtensionKind = "TrafficExtension" // its successor, since Istio 1.30
)

// IstioOptions say what an Istio resource holds. URL, or Mount, and Policy are required.
//
// Environment variables (vmConfig) are left out on purpose: the filter reads none, and different
// ones would give each plugin VMs of its own. pluginName, the root id, is left out because the
// module has only one root context.
type IstioOptions struct {
	Object
	Fetch
	Mount  ConfigMap // instead of a URL
	Kind   string    // default WasmPluginKind
	Policy []byte    // the text of a policy file, valid
	Quota  Quota

	Phase    string // AUTHN, AUTHZ or STATS; empty = after all of Istio's filters
	Priority *int32 // order within the phase, highest first
	Mode     string // CLIENT, SERVER or CLIENT_AND_SERVER; empty = both
	Ports    []int  // empty = all

	Selector map[string]string // labels of the workloads
	Targets  []string          // KIND/NAME; not with Selector

	FailStrategy string // FAIL_RELOAD, FAIL_CLOSE or FAIL_OPEN; default the first
}

var (
	istioWaypoint = "istio-waypoint" // the only GatewayClass that a policy may name
	istioTargets  = map[string]string{
		"Gateway": "gateway.networking.k8s.io", "GatewayClass": "gateway.networking.k8s.io",
		"Service": "", "ServiceEntry": "networking.istio.io",
	}

	labelKey   = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
)

//go:embed istio.yaml.tmpl
var istioText string

var istioTemplate = newResourceTemplate("istio", istioText)

// Istio writes a WasmPlugin or a TrafficExtension as YAML for kubectl, with the
// policy as plain YAML inside.
func Istio(o IstioOptions) ([]byte, error) {
	o.Kind, o.Name = cmp.Or(o.Kind, WasmPluginKind), cmp.Or(o.Name, ResourceName)
	o.FailStrategy = cmp.Or(o.FailStrategy, "FAIL_RELOAD")
	if o.Mount.Name != "" && o.URL == "" {
		o.URL = o.Mount.url()
	}
	view, err := o.view()
	return render(o.Kind, istioTemplate, view, err)
}

func (o IstioOptions) view() (view istioView, err error) {
	view = istioView{IstioOptions: o}
	if err := o.check(); err != nil {
		return view, err
	}
	view.TargetRefs, err = parseTargets(o.Targets, istioTargets, "Gateway, GatewayClass, Service or ServiceEntry", false)
	if err != nil {
		return view, err
	}
	for _, target := range view.TargetRefs {
		if target.Kind == "GatewayClass" && target.Name != istioWaypoint {
			return view, fmt.Errorf("target %q would limit nothing: of this kind Istio reads only %s; "+
				"name a gateway as Gateway/NAME", target.Kind+"/"+target.Name, target.Kind+"/"+istioWaypoint)
		}
	}
	view.PolicyYAML, err = policyYAML(o.Policy, o.Quota)
	return view, err
}

func (o IstioOptions) check() error {
	if err := o.Object.check(); err != nil {
		return err
	}
	if err := o.Quota.check(); err != nil {
		return err
	}
	if err := o.Mount.check(); err != nil {
		return err
	}
	if err := o.Fetch.check("oci://REGISTRY/IMAGE", "https://HOST/PATH", "http://HOST/PATH", "file:///PATH"); err != nil {
		return err
	}
	for i, port := range o.Ports {
		if port < 1 || port > 65535 {
			return fmt.Errorf("port %d: want 1 to 65535", port)
		}
		if slices.Contains(o.Ports[:i], port) {
			return fmt.Errorf("port %d is given twice", port)
		}
	}
	if len(o.Selector) > 0 && len(o.Targets) > 0 {
		return errors.New("a selector and targets: Istio takes one of the two")
	}
	for _, key := range slices.Sorted(maps.Keys(o.Selector)) {
		if !labelKey.MatchString(key) || !labelValue.MatchString(o.Selector[key]) {
			return fmt.Errorf("selector %q: want a label and its value, such as app=shop", key+"="+o.Selector[key])
		}
	}
	return nil
}

// istioView is what the template sees.
type istioView struct {
	IstioOptions

	TargetRefs []Target
	PolicyYAML string
}

// Wasm is the part that a WasmPlugin has in its spec, and a TrafficExtension in wasm of its
// spec.
func (v istioView) Wasm() (string, error) {
	var out strings.Builder
	err := istioTemplate.ExecuteTemplate(&out, "wasm", v)
	return strings.TrimPrefix(out.String(), "\n"), err
}
