package envoy

import (
	"cmp"
	_ "embed"
	"errors"
)

// EnvoyGatewayOptions say what an EnvoyExtensionPolicy holds. URL, Targets and
// Policy are required.
//
// Environment variables (env) are left out on purpose: the filter reads none.
type EnvoyGatewayOptions struct {
	Object
	Fetch
	Policy   []byte // the text of a policy file, valid
	Quota    Quota
	Targets  []string // KIND/NAME or KIND/NAME/SECTION
	FailOpen bool     // let requests through where the filter cannot run
}

var envoyGatewayTargets = map[string]string{
	"Gateway":   "gateway.networking.k8s.io",
	"HTTPRoute": "gateway.networking.k8s.io",
	"GRPCRoute": "gateway.networking.k8s.io",
}

//go:embed envoygateway.yaml.tmpl
var envoyGatewayText string

var envoyGatewayTemplate = newResourceTemplate("envoygateway", envoyGatewayText)

// EnvoyGateway writes an EnvoyExtensionPolicy as YAML for kubectl, with the
// policy as plain YAML inside.
func EnvoyGateway(o EnvoyGatewayOptions) ([]byte, error) {
	o.Name = cmp.Or(o.Name, ResourceName)
	view, err := o.view()
	return render("EnvoyExtensionPolicy", envoyGatewayTemplate, view, err)
}

func (o EnvoyGatewayOptions) view() (view envoyGatewayView, err error) {
	view = envoyGatewayView{EnvoyGatewayOptions: o, Plugin: ResourceName}
	if err := o.Object.check(); err != nil {
		return view, err
	}
	if err := o.Quota.check(); err != nil {
		return view, err
	}
	if err := o.Fetch.check("oci://REGISTRY/IMAGE", "https://HOST/PATH", "http://HOST/PATH"); err != nil {
		return view, err
	}
	if len(o.Targets) == 0 {
		return view, errors.New("no target: want a Gateway, HTTPRoute or GRPCRoute, such as Gateway/edge")
	}
	view.TargetRefs, err = parseTargets(o.Targets, envoyGatewayTargets, "Gateway, HTTPRoute or GRPCRoute", true)
	if err != nil {
		return view, err
	}
	view.PolicyYAML, err = policyYAML(o.Policy, o.Quota)
	return view, err
}

// envoyGatewayView is what the template sees.
type envoyGatewayView struct {
	EnvoyGatewayOptions

	Plugin     string // Envoy's name of the plugin
	TargetRefs []Target
	PolicyYAML string
}
