package envoy

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// EmptyPolicy limits nothing.
const EmptyPolicy = `{"version":1,"rules":[]}`

const (
	// ListenerName is the rendered listener that serves the upstream.
	ListenerName = "ingress"
	// ManageListenerName is the rendered listener for management requests.
	ManageListenerName = "manage"
)

// BootstrapOptions say what a bootstrap connects. Addresses are HOST:PORT; those that Envoy
// binds are IPs, and may have port 0.
type BootstrapOptions struct {
	Plugin   Plugin // without Policy: none until XDS gives one, or EmptyPolicy if there is no XDS
	Listen   string
	Upstream string
	Admin    string
	Node     string // node id
	Manage   string // a listener of its own for management requests; empty = none
	// ManageTLS is the certificate of that listener; nil = plain text.
	ManageTLS *ServerTLS

	// XDS is the control plane; empty = the plugin is static. Of several addresses, the proxy
	// uses the first that answers.
	XDS    []string
	XDSTLS *ClientTLS
	// OpenWithoutPolicy lets requests through while Plugin has no policy and XDS has given none
	// yet. Without it the proxy answers 500.
	OpenWithoutPolicy bool

	AccessLog string   // file of the access log; empty = none
	Headers   []string // request headers that it shows

	// Quota has the addresses of the quota service, for rules of scope cluster; the proxy uses
	// the first that answers. Empty = those of XDS.
	Quota        []string
	QuotaTLS     *ClientTLS // if Quota is given; else XDSTLS
	QuotaCluster string     // the cluster's name; default DefaultQuotaCluster
	// QuotaTimeout is how long a request waits for it; default DefaultQuotaTimeout.
	QuotaTimeout time.Duration
}

// The quota service of a policy that does not say another one.
const (
	DefaultQuotaCluster = "sluice_quota"
	DefaultQuotaTimeout = 100 * time.Millisecond
)

// ClientTLS has paths of PEM files on the proxy's machine, for connections to a service.
type ClientTLS struct {
	CA        string // signs the service's certificate
	Cert, Key string // of Envoy itself; both or none
}

func (tls *ClientTLS) check(hasAddress bool, of string) error {
	switch {
	case tls == nil:
		return nil
	case !hasAddress:
		return fmt.Errorf("TLS for the %s, but no %s", of, of)
	case tls.CA == "":
		return fmt.Errorf("TLS needs the certificate authority of the %s", of)
	case (tls.Cert == "") != (tls.Key == ""):
		return errors.New("a client certificate and its key go together")
	}
	return nil
}

// ServerTLS is a listener's certificate: paths of PEM files on the proxy's machine.
type ServerTLS struct{ Cert, Key string }

//go:embed bootstrap.yaml.tmpl
var bootstrapText string

var bootstrapTemplate = template.Must(template.New("bootstrap").Funcs(template.FuncMap{
	"scalar":    scalar,
	"indent":    indent,
	"statsTags": StatsTags,
}).Parse(bootstrapText))

// Bootstrap writes an Envoy configuration as YAML, for people to read and change: the filter in
// front of one upstream, by extension config discovery from o.XDS, or static without it.
func Bootstrap(o BootstrapOptions) ([]byte, error) {
	view, err := newBootstrapView(o, false)
	return render("bootstrap", bootstrapTemplate, view, err)
}

// render executes a template with a view, unless there is an error already.
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

// check refuses an option that needs another one which is missing.
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

// newBootstrapView reads the options. A part of a bootstrap needs no listeners.
func newBootstrapView(o BootstrapOptions, part bool) (bootstrapView, error) {
	view := bootstrapView{BootstrapOptions: o}
	if err := o.check(); err != nil {
		return view, err
	}
	quotas := o.Quota
	if len(quotas) == 0 {
		quotas, view.QuotaTLS = o.XDS, o.XDSTLS
	}
	for _, option := range []addressOption{
		{"listen address", []string{o.Listen}, listenAddress, &view.ListenAt, part},
		{"upstream address", []string{o.Upstream}, dialAddress, &view.UpstreamAt, part},
		{"admin address", []string{o.Admin}, listenAddress, &view.AdminAt, part},
		{"manage address", []string{o.Manage}, listenAddress, &view.ManageAt, true},
		{"xds address", o.XDS, dialAddress, &view.XDSAt, false},
		{"quota address", quotas, dialAddress, &view.QuotaAt, false},
	} {
		if err := option.read(); err != nil {
			return view, err
		}
	}
	if err := view.checkListeners(); err != nil {
		return view, err
	}
	var err error
	view.Filter, err = filterYAML(o.Plugin)
	return view, err
}

// addressOption is an option with addresses, and where they go in the view.
type addressOption struct {
	what     string
	texts    []string
	parse    func(string) (address, error)
	into     *[]address
	optional bool
}

func (o *addressOption) read() error {
	for i, text := range o.texts {
		if text == "" && o.optional {
			continue
		}
		parsed, err := o.parse(text)
		if err != nil {
			return fmt.Errorf("%s %w", o.what, err)
		}
		if slices.Contains(o.texts[:i], text) {
			return fmt.Errorf("%s %q is given twice", o.what, text)
		}
		*o.into = append(*o.into, parsed)
	}
	return nil
}

// checkListeners refuses two listeners on one address: Envoy would refuse the second one or, by
// SO_REUSEPORT, the kernel would give each of them a share of the connections.
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

// bootstrapView is what bootstrap.yaml.tmpl and filterentry.yaml.tmpl see. Only they call its
// exported methods, and those of clusterView.
type bootstrapView struct {
	BootstrapOptions

	XDSAt, QuotaAt                          []address // empty where there is none
	Filter                                  string    // typed_config of the plugin, YAML
	ListenAt, UpstreamAt, AdminAt, ManageAt []address // one each, or none
}

// Announced is the management address that the control plane gets.
func (v bootstrapView) Announced() string {
	if v.ManageTLS != nil {
		return "https://" + v.Manage
	}
	return v.Manage
}

// FilterName is the name of the HTTP filter, and of its resource at the control plane.
func (v bootstrapView) FilterName() string { return cmp.Or(v.Plugin.Name, ResourceName) }

// IsClosed reports whether the proxy answers 500 until the control plane has given a policy.
func (v bootstrapView) IsClosed() bool {
	return len(v.XDS) > 0 && len(v.Plugin.Policy) == 0 && !v.OpenWithoutPolicy
}

// VMCapabilities reports whether the list of capabilities is where Envoy reads it since 1.40.
func (v bootstrapView) VMCapabilities() bool { return TakesVMCapabilities(v.Plugin.Envoy) }

// MustStartV8 reports whether the bootstrap must start V8 before Envoy's workers, because no filter is there to do it.
func (v bootstrapView) MustStartV8() bool {
	isV8 := cmp.Or(v.Plugin.Runtime, DefaultRuntime) == DefaultRuntime
	return v.IsClosed() && isV8 && mustStartV8Early(v.Plugin.Envoy)
}

// SmallestModule is a module that does nothing, in as few bytes as Envoy accepts.
const SmallestModule = "\x00asm\x01\x00\x00\x00" +
	"\x01\x09\x02\x60\x00\x00\x60\x01\x7f\x01\x7f" + // types: func(), func(i32) i32
	"\x03\x03\x02\x00\x01" + // one function of each
	"\x05\x03\x01\x00\x01" + // a page of memory
	"\x07\x3f\x03" + // three exports
	"\x06memory\x02\x00" +
	"\x17proxy_abi_version_0_2_0\x00\x00" +
	"\x18proxy_on_memory_allocate\x00\x01" +
	"\x0a\x09\x02\x02\x00\x0b\x04\x00\x41\x00\x0b" // return; return 0

// SmallestModule is that module in base64.
func (bootstrapView) SmallestModule() string {
	return base64.StdEncoding.EncodeToString([]byte(SmallestModule))
}

// Endpoint describes a cluster. Of several addresses, the first that answers gets all requests.
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

// QuotaService describes the quota service's cluster. An attempt to connect ends before requests
// stop waiting, and a connection that hangs is noticed within a second.
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

// ServerName is the name that the proxy asks for in its TLS handshake; empty for an IP, or for
// several addresses.
func (c clusterView) ServerName() string {
	if len(c.At) == 1 && !c.At[0].isIP() {
		return c.At[0].Host
	}
	return ""
}

// Names are the hosts that the service's certificate may be for, each once.
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

//go:embed filterentry.yaml.tmpl
var filterEntryText string

var filterEntryTemplate = template.Must(template.Must(bootstrapTemplate.Clone()).
	New("filter entry").
	Funcs(template.FuncMap{"cut": cut}).
	Parse(filterEntryText))

// FilterEntry writes what to add to an existing Envoy configuration, as three YAML documents:
// the entry of http_filters, what goes beside it, and what goes to the top level. It does not
// read o's addresses to listen on, of the upstream and of the admin interface: the configuration
// has its own.
func FilterEntry(o BootstrapOptions) ([]byte, error) {
	view, err := newBootstrapView(o, true)
	return render("filter", filterEntryTemplate, view, err)
}

// cut writes a part of the bootstrap, with fewer spaces before each line.
func cut(spaces int, part string, view bootstrapView) (string, error) {
	var out strings.Builder
	if err := bootstrapTemplate.ExecuteTemplate(&out, part, view); err != nil {
		return "", err
	}
	return strings.ReplaceAll(out.String(), "\n"+strings.Repeat(" ", spaces), "\n"), nil
}

// StatsTag is an item of Envoy's stats_tags, which makes a label of a part of a metric's name:
// the outer group of the expression is cut from the name, the inner one is the label's value.
type StatsTag struct{ Name, Regex string }

// StatsTags are the labels of the filter's metrics. Each expression matches the names
// wasmcustom.[domain=.=DOMAIN;.;]rule=.=RULE;.;[override=.=NAME;.;]rate_limit_…
// which labels in filter/internal/host/metrics.go writes. envoy/proxy/admin.go reads them too.
func StatsTags() []StatsTag {
	const (
		domain   = `(?:domain=\.=.*?;\.;)?`
		override = `(?:override=\.=.*;\.;)?`
		end      = `rate_limit_\w+$`
	)
	return []StatsTag{
		{"domain", `^wasmcustom\.(domain=\.=(.*?);\.;)rule=\.=.*;\.;` + end},
		{"rule", `^wasmcustom\.` + domain + `(rule=\.=(.*?);\.;)` + override + end},
		{"override", `^wasmcustom\.` + domain + `rule=\.=.*?;\.;(override=\.=(.*);\.;)` + end},
	}
}

// LoggedHeaders are the headers that the access log shows.
func (v bootstrapView) LoggedHeaders() (names []string) {
	for _, name := range v.Headers {
		if isLoggable(name) {
			names = append(names, name)
		}
	}
	return names
}

// isLoggable reports whether the access log may show a header: it is not secret, and its name
// has no sign with a meaning in a log format.
func isLoggable(name string) bool {
	return name != "" && !policy.IsCredential(name) && utf8.ValidString(name) && !strings.ContainsAny(name, "%():? ")
}
