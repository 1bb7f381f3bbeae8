package envoy

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// EmptyPolicy limits nothing.
const EmptyPolicy = `{"version":1,"rules":[]}`

const (
	// ListenerName is the rendered listener that serves the upstream.
	ListenerName = "ingress"
	// ManageListenerName is the rendered listener for management requests.
	ManageListenerName = "manage"
)

// BootstrapOptions says what a bootstrap wires together. Addresses are
// HOST:PORT; those that Envoy binds are IPs and may have port 0.
type BootstrapOptions struct {
	Plugin   Plugin // Policy may be empty: with XDS none until that answers, else EmptyPolicy
	Listen   string
	Upstream string
	Admin    string
	Node     string // node id
	Manage   string // a listener of its own for management requests; empty = none
	// ManageTLS is the certificate of that listener; nil = plain text.
	ManageTLS *ServerTLS

	// XDS is the control plane; empty = the plugin is static. Of several addresses,
	// the proxy takes the first that answers.
	XDS    []string
	XDSTLS *ClientTLS
	// OpenWithoutPolicy has the proxy let requests through, where it would answer 500 because Plugin has no policy and
	// XDS has given none yet.
	OpenWithoutPolicy bool

	AccessLog string   // file of the access log; empty = none
	Headers   []string // request headers that it shows

	// Quota is where the quota service of rules of scope cluster is; of several the
	// proxy takes the first that answers. Empty = none without a control plane, and the
	// control plane's addresses with one.
	Quota        []string
	QuotaTLS     *ClientTLS // if Quota is given; else XDSTLS
	QuotaCluster string     // the cluster's name; default DefaultQuotaCluster
	// QuotaTimeout is how long a request waits for it; default DefaultQuotaTimeout.
	QuotaTimeout time.Duration
}

// What a policy without quota says.
const (
	DefaultQuotaCluster = "sluice_quota"
	DefaultQuotaTimeout = 100 * time.Millisecond
)

// ClientTLS is how Envoy proves its identity to the control plane and which one it
// believes: paths of PEM files on the proxy's machine.
type ClientTLS struct {
	CA        string
	Cert, Key string // both or none
}

func (tls *ClientTLS) check(reached bool, of string) error {
	switch {
	case tls == nil:
		return nil
	case !reached:
		return fmt.Errorf("TLS for the %s, but no %s", of, of)
	case tls.CA == "":
		return fmt.Errorf("TLS needs the certificate authority of the %s", of)
	case (tls.Cert == "") != (tls.Key == ""):
		return errors.New("a client certificate and its key go together")
	}
	return nil
}

// ServerTLS is a listener's certificate: paths of PEM files on the proxy's
// machine.
type ServerTLS struct{ Cert, Key string }

//go:embed bootstrap.yaml.tmpl
var bootstrapText string

var bootstrapTemplate = template.Must(template.New("bootstrap").Funcs(template.FuncMap{
	"scalar":    scalar,
	"indent":    indent,
	"statsTags": StatsTags,
}).Parse(bootstrapText))

// Bootstrap writes an Envoy configuration as YAML for people to read and
// change: our filter in front of one upstream, by extension config discovery
// from o.XDS, or static without it.
func Bootstrap(o BootstrapOptions) ([]byte, error) {
	view, err := newBootstrapView(o, false)
	return render("bootstrap", bootstrapTemplate, view, err)
}

// render executes a template with a view, unless that has an error.
func render(what string, t *template.Template, view any, err error) ([]byte, error) {
	var out bytes.Buffer
	if err == nil {
		err = t.Execute(&out, view)
	}
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", what, err)
	}
	return out.Bytes(), nil
}

// check finds options that lack each other.
func (o BootstrapOptions) check() error {
	if o.Node == "" && len(o.XDS) > 0 {
		return errors.New("no node id: the control plane tells proxies apart by it")
	}
	if v := o.Plugin.Envoy; v != "" {
		if _, _, err := parseVersion(v); err != nil {
			return err
		}
	}
	if err := o.XDSTLS.check(len(o.XDS) > 0, "control plane"); err != nil {
		return err
	}
	if err := o.QuotaTLS.check(len(o.Quota) > 0, "quota service"); err != nil {
		return err
	}
	if tls := o.ManageTLS; tls != nil {
		switch {
		case o.Manage == "":
			return errors.New("a certificate for management requests, but no listener for them")
		case tls.Cert == "" || tls.Key == "":
			return errors.New("the management listener's certificate and its key go together")
		}
	}
	return nil
}

// newBootstrapView reads the options; a part of a bootstrap needs no listeners.
func newBootstrapView(o BootstrapOptions, part bool) (bootstrapView, error) {
	view := bootstrapView{BootstrapOptions: o}
	if err := o.check(); err != nil {
		return view, err
	}
	quotas := o.Quota
	if len(quotas) == 0 {
		quotas, view.QuotaTLS = o.XDS, o.XDSTLS
	}
	for _, a := range []struct {
		what     string
		texts    []string
		parse    func(string) (address, error)
		into     *[]address
		optional bool
	}{
		{"listen address", []string{o.Listen}, listenAddress, &view.ListenAt, part},
		{"upstream address", []string{o.Upstream}, dialAddress, &view.UpstreamAt, part},
		{"admin address", []string{o.Admin}, listenAddress, &view.AdminAt, part},
		{"manage address", []string{o.Manage}, listenAddress, &view.ManageAt, true},
		{"xds address", o.XDS, dialAddress, &view.XDSAt, false},
		{"quota address", quotas, dialAddress, &view.QuotaAt, false},
	} {
		for i, text := range a.texts {
			if text == "" && a.optional {
				continue
			}
			parsed, err := a.parse(text)
			if err != nil {
				return view, fmt.Errorf("%s %w", a.what, err)
			}
			if slices.Contains(a.texts[:i], text) {
				return view, fmt.Errorf("%s %q is given twice", a.what, text)
			}
			*a.into = append(*a.into, parsed)
		}
	}
	if err := view.checkListeners(); err != nil {
		return view, err
	}
	var err error
	view.Filter, err = filterYAML(o.Plugin)
	return view, err
}

// checkListeners finds two listeners of one address: Envoy refuses the second one, or,
// by SO_REUSEPORT, the kernel gives each a share of the connections.
func (v *bootstrapView) checkListeners() error {
	listeners := []struct {
		what string
		at   []address
	}{{"listen", v.ListenAt}, {"admin", v.AdminAt}, {"manage", v.ManageAt}}
	for i, one := range listeners {
		for _, other := range listeners[i+1:] {
			if len(one.at) > 0 && len(other.at) > 0 && one.at[0].overlaps(other.at[0]) {
				return fmt.Errorf("%s address and %s address both take port %d of %s: give each a port of its own",
					one.what, other.what, one.at[0].Port, other.at[0].Host)
			}
		}
	}
	return nil
}

// bootstrapView is what the template sees.
type bootstrapView struct {
	BootstrapOptions

	XDSAt, QuotaAt                          []address // empty where there is none
	Filter                                  string    // typed_config of the plugin, YAML
	ListenAt, UpstreamAt, AdminAt, ManageAt []address // one each, or none
}

// Announced is the management address as the control plane gets it.
func (v bootstrapView) Announced() string {
	if v.ManageTLS != nil {
		return "https://" + v.Manage
	}
	return v.Manage
}

// FilterName is the HTTP filter's name, which is also that of the resource it
// is served as.
func (v bootstrapView) FilterName() string { return cmp.Or(v.Plugin.Name, ResourceName) }

// IsClosed says whether the proxy serves no request before the control plane has given it a policy.
func (v bootstrapView) IsClosed() bool {
	return len(v.XDS) > 0 && len(v.Plugin.Policy) == 0 && !v.OpenWithoutPolicy
}

// VMCapabilities says whether the list of capabilities is where Envoy reads it since 1.40.
func (v bootstrapView) VMCapabilities() bool { return TakesVMCapabilities(v.Plugin.Envoy) }

// Endpoint describes a cluster to the template: of several addresses the first that
// answers takes everything.
func (v bootstrapView) Endpoint(name string, at []address) clusterView {
	return clusterView{Name: name, At: at, Discovery: discovery(at), ConnectTimeout: "2s"}
}

// Service describes the control plane's cluster.
func (v bootstrapView) Service(name string, at []address) clusterView {
	c := v.Endpoint(name, at)
	c.Keepalive, c.TLS = "10s", v.XDSTLS
	return c
}

// QuotaClusterName is the name of the quota service's cluster, which the control plane
// compares with what policies name.
func (v bootstrapView) QuotaClusterName() string { return cmp.Or(v.QuotaCluster, DefaultQuotaCluster) }

// QuotaService describes the quota service's cluster: no connection attempt lasts
// as long as requests wait, and one that hangs is noticed within a second.
func (v bootstrapView) QuotaService(at []address) clusterView {
	c := v.Endpoint(v.QuotaClusterName(), at)
	wait := cmp.Or(v.QuotaTimeout, DefaultQuotaTimeout) / 2
	c.Keepalive, c.TLS = "1s", v.QuotaTLS
	c.ConnectTimeout = strconv.FormatFloat(wait.Seconds(), 'f', -1, 64) + "s"
	return c
}

type clusterView struct {
	Name           string
	At             []address
	Discovery      string
	ConnectTimeout string

	Keepalive string // of a service over HTTP/2
	TLS       *ClientTLS
}

// ServerName is the name that the proxy asks for in its handshake, empty for an IP
// or where there are several.
func (c clusterView) ServerName() string {
	if len(c.At) == 1 && !c.At[0].isIP() {
		return c.At[0].Host
	}
	return ""
}

// Names are the hosts that the service's certificate may be of, each once.
func (c clusterView) Names() []address {
	var names []address
	for _, at := range c.At {
		if !slices.ContainsFunc(names, func(a address) bool { return a.Host == at.Host }) {
			names = append(names, at)
		}
	}
	return names
}

func discovery(at []address) string {
	if slices.ContainsFunc(at, func(a address) bool { return !a.isIP() }) {
		return "STRICT_DNS"
	}
	return "STATIC"
}

// longestReadable is the length above which a policy is left on one line: it
// is no reading matter then, and indented it might outgrow policy.MaxBytes.
const longestReadable = 64 << 10

// filterYAML writes the plugin's configuration as YAML with the policy as a
// block of indented JSON.
func filterYAML(p Plugin) (string, error) {
	if len(p.Policy) == 0 {
		p.Policy = []byte(EmptyPolicy)
	}
	var policy bytes.Buffer
	if err := json.Indent(&policy, p.Policy, "", "  "); err != nil {
		return "", fmt.Errorf("read policy: %w", err)
	}
	if len(p.Policy) <= longestReadable {
		p.Policy = policy.Bytes()
	}
	config, err := p.Any()
	if err != nil {
		return "", err
	}
	// protojson knows Envoy's spelling; its output, being JSON, is YAML.
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("marshal filter: %w", err)
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return "", fmt.Errorf("marshal filter: %w", err)
	}
	restyle(&node)
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return "", fmt.Errorf("marshal filter: %w", err)
	}
	return out.String(), encoder.Close()
}

// restyle turns JSON's braces and quotes into YAML's blocks. Empty collections
// keep their braces, an object of nothing else stays on one line, and texts of
// many lines become literal blocks.
func restyle(node *yaml.Node) {
	switch {
	case node.Kind == yaml.MappingNode && isSet(node):
		node.Style = yaml.FlowStyle
	case node.Kind == yaml.ScalarNode && strings.Contains(node.Value, "\n"):
		node.Style = yaml.LiteralStyle
	case len(node.Content) > 0 || node.Kind == yaml.ScalarNode:
		node.Style = 0
	}
	for _, child := range node.Content {
		restyle(child)
	}
}

// isSet reports whether the values of an object are all empty objects.
func isSet(node *yaml.Node) bool {
	for i := 1; i < len(node.Content); i += 2 {
		if value := node.Content[i]; value.Kind != yaml.MappingNode || len(value.Content) > 0 {
			return false
		}
	}
	return true
}

// plain is what needs no quotes wherever it stands, unless it is a word that
// YAML reads as something other than a string.
var plain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9_./-]*$`)

// scalar writes a text as YAML, quoted where YAML would read something else.
func scalar(text string) (string, error) {
	if plain.MatchString(text) {
		out, err := yaml.Marshal(text)
		return strings.TrimSuffix(string(out), "\n"), err
	}
	// A JSON string is a YAML string, on one line and in any context.
	out, err := json.Marshal(text)
	return string(out), err
}

// indent moves every line but the first, which stands where the template puts
// it, and drops the last line's end.
func indent(spaces int, text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := range lines {
		if i > 0 && lines[i] != "" {
			lines[i] = strings.Repeat(" ", spaces) + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}
