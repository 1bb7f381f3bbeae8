// Package kubernetes writes the manifests of serve and quota, from a template.
//
// Its invariant: the text is what Kubernetes' own types decode, which a test shows. It must not
// import those types, because they would be the larger part of the command.
package kubernetes

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
)

// Where a container finds its files and its store.
const (
	Dir  = "/etc/sluice"
	Data = "/var/lib/sluice"
)

// Options say what stands where. The namespace has two Secrets: sluice-tls, of type
// kubernetes.io/tls, and sluice. A key of sluice has the name of a flag, and its value is the content
// of the file that the flag names.
type Options struct {
	Image, Namespace, Storage string
	ServeFiles, QuotaFiles    []string // further such flags
	QuotaStore                string   // URL; empty = serve counts in memory
	Proxies, Callers          []string // NAMESPACE or NAMESPACE/LABEL=VALUE
}

// workload is serve or quota.
type workload struct {
	Command             string
	Stateful            bool
	ProxyPort, HTTPPort int
	Args, Files         []string
	StorePorts          []string
}

func (w workload) Name() string { return "sluice-" + w.Command }

// addFiles adds a flag for each file of the Secret.
func (w *workload) addFiles(flags ...string) {
	for _, flag := range flags {
		if !slices.Contains(w.Files, flag) {
			w.Args = append(w.Args, "--"+flag+"="+Dir+"/"+flag)
			w.Files = append(w.Files, flag)
		}
	}
}

type peer struct{ Namespace, Label, Value string }

const (
	label = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	word  = `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
)

var (
	namespaceName = regexp.MustCompile(`^` + label + `$`)
	secretKey     = regexp.MustCompile(`^[-._a-zA-Z0-9]+$`)
	quantity      = regexp.MustCompile(`^[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$`)
	imageName     = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._/:@]*$`)
	labelName     = regexp.MustCompile(`^(` + label + `(\.` + label + `)*/)?` + word + `$`)
	labelValue    = regexp.MustCompile(`^(` + word + `)?$`)
)

//go:embed manifests.yaml.tmpl
var text string

var manifests = template.Must(template.New("").Funcs(template.FuncMap{
	"quote": func(s string) string { return fmt.Sprintf("%q", s) },
}).Parse(text))

// Manifests returns the resources as YAML.
func Manifests(o Options) ([]byte, error) {
	for _, field := range []struct {
		flag, value, want string
		form              *regexp.Regexp
	}{
		{"image", o.Image, "REGISTRY/IMAGE:TAG", imageName},
		{"namespace", o.Namespace, "lower-case letters, digits and -, at most 63", namespaceName},
		{"storage", o.Storage, "a size such as 4Gi", quantity},
	} {
		if !field.form.MatchString(field.value) {
			return nil, fmt.Errorf("--%s %q: want %s", field.flag, field.value, field.want)
		}
	}
	proxies, err := peers("proxies", o.Proxies)
	if err != nil {
		return nil, err
	}
	callers, err := peers("callers", o.Callers)
	if err != nil {
		return nil, err
	}
	workloads, err := o.workloads()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = manifests.Execute(&out, struct {
		Options
		Dir, Data        string
		Proxies, Callers []peer
		Workloads        []workload
	}{o, Dir, Data, proxies, callers, workloads})
	return out.Bytes(), err
}

func (o Options) workloads() ([]workload, error) {
	serve := workload{Command: "serve", Stateful: true, ProxyPort: 18000, HTTPPort: 18080, Args: []string{
		"--data=" + Data, "--xds=:18000", "--http=:18080",
		"--tls-cert=" + Dir + "/tls.crt", "--tls-key=" + Dir + "/tls.key",
	}}
	serve.addFiles(append([]string{"xds-client-ca", "access"}, o.ServeFiles...)...)
	for _, flag := range o.ServeFiles {
		if strings.HasPrefix(flag, "quota-") && (o.QuotaStore != "" || flag == "quota-password-file") {
			return nil, fmt.Errorf("--serve-file %s: serve has no such store here: give it to quota by --quota-file", flag)
		}
	}
	if o.QuotaStore == "" {
		if len(o.QuotaFiles) > 0 {
			return nil, errors.New("--quota-file without --quota-store: only quota reads it")
		}
		return []workload{serve}, nil
	}
	needs, err := redisstore.Inspect(o.QuotaStore)
	if err != nil {
		return nil, err
	}
	if needs.Password {
		return nil, errors.New("--quota-store has a password, which the manifest would show: put it into the Secret, " +
			"with --quota-file quota-password-file")
	}
	if needs.TLS && !needs.CA {
		return nil, errors.New("the image has no certificate authorities for the TLS of --quota-store: add ?ca=" + Dir +
			"/KEY, where KEY is a key of the Secret")
	}
	serve.Args = append(serve.Args, "--quota-store=off")
	quota := workload{Command: "quota", ProxyPort: 18001, HTTPPort: 18081, StorePorts: needs.Ports, Args: []string{
		"--listen=:18001", "--http=:18081", "--quota-store=" + o.QuotaStore,
		"--tls-cert=" + Dir + "/tls.crt", "--tls-key=" + Dir + "/tls.key",
		"--client-ca=" + Dir + "/xds-client-ca", // of the same proxies
	}, Files: []string{"xds-client-ca"}}
	quota.addFiles(append([]string{"access", "quota-domains"}, o.QuotaFiles...)...)
	for _, file := range needs.Files {
		key, ok := strings.CutPrefix(file, Dir+"/")
		if !ok || !secretKey.MatchString(key) {
			return nil, fmt.Errorf("--quota-store names the file %q: want %s/KEY, where KEY is a key of the Secret", file, Dir)
		}
		if !slices.Contains(quota.Files, key) {
			quota.Files = append(quota.Files, key)
		}
	}
	return []workload{serve, quota}, nil
}

func peers(flag string, texts []string) ([]peer, error) {
	var list []peer
	for _, text := range texts {
		namespace, pair, hasLabel := strings.Cut(text, "/")
		label, value, isPair := strings.Cut(pair, "=")
		isLabel := isPair && labelName.MatchString(label) && labelValue.MatchString(value)
		if !namespaceName.MatchString(namespace) || hasLabel && !isLabel {
			return nil, fmt.Errorf("--%s %q: want NAMESPACE or NAMESPACE/LABEL=VALUE", flag, text)
		}
		list = append(list, peer{Namespace: namespace, Label: label, Value: value})
	}
	return list, nil
}
