package envoy

import (
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"text/template"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

//go:embed kubernetes.yaml.tmpl
var kubernetesText string

// newResourceTemplate reads the template of a custom resource. It has what kubernetes.yaml.tmpl
// defines for all kinds.
func newResourceTemplate(name, text string) *template.Template {
	shared := template.Must(template.New("kubernetes").Funcs(template.FuncMap{
		"scalar": scalar,
		"indent": indent,
	}).Parse(kubernetesText))
	return template.Must(shared.New(name).Parse(text))
}

// Object names a custom resource.
type Object struct {
	Name      string // default ResourceName
	Namespace string // empty: kubectl's
}

// Fetch says where a controller fetches the filter's binary from.
type Fetch struct {
	URL        string // oci://IMAGE, https://…, http://… or, for Istio, file:///PATH
	SHA256     string // of the image's manifest, or of the file behind http; empty = not checked
	PullSecret string // a Secret with registry credentials, in the resource's namespace
}

const (
	maxObjectName    = 253 // an RFC 1123 subdomain
	maxNamespaceName = 63  // an RFC 1123 label
	maxTargets       = 16
)

var (
	objectName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	sha256Text    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	// An image as the Docker registry writes it: host and path, then a tag, a
	// digest or both.
	imageName = regexp.MustCompile(`^[a-zA-Z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+` +
		`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
)

func checkName(what, name string) error {
	if len(name) > maxObjectName || !objectName.MatchString(name) {
		return fmt.Errorf("%s %q: want lower-case letters, digits, - and ., at most %d, such as %s",
			what, name, maxObjectName, ResourceName)
	}
	return nil
}

func (o Object) check() error {
	if err := checkName("name", o.Name); err != nil {
		return err
	}
	if o.Namespace != "" && (len(o.Namespace) > maxNamespaceName || !namespaceName.MatchString(o.Namespace)) {
		return fmt.Errorf("namespace %q: want lower-case letters, digits and -, at most %d", o.Namespace, maxNamespaceName)
	}
	return nil
}

// Scheme is the URL's: oci, https, http or file.
func (f Fetch) Scheme() string {
	scheme, _, _ := strings.Cut(f.URL, "://")
	return scheme
}

// Image is the image's name, without the scheme; empty if the URL is not an image's.
func (f Fetch) Image() string {
	image, isImage := strings.CutPrefix(f.URL, "oci://")
	if !isImage {
		return ""
	}
	return image
}

// check refuses what Istio or Envoy Gateway would refuse or ignore.
func (f Fetch) check(schemes ...string) error {
	want := strings.Join(schemes, ", ")
	if f.URL == "" {
		return fmt.Errorf("no URL of the filter's wasm binary: want one of %s", want)
	}
	known := false
	for _, s := range schemes {
		known = known || strings.HasPrefix(s, f.Scheme()+"://")
	}
	if !known || !strings.Contains(f.URL, "://") {
		return fmt.Errorf("url %q: want one of %s", f.URL, want)
	}
	if err := f.checkPlace(); err != nil {
		return err
	}
	switch {
	case f.SHA256 != "" && f.Scheme() == "file":
		return errors.New("sha256 with a file:// URL: Istio does not check files, so it would promise nothing")
	case f.SHA256 != "" && !sha256Text.MatchString(f.SHA256):
		return fmt.Errorf("sha256 %q: want 64 digits 0-9a-f", f.SHA256)
	case f.PullSecret != "" && f.Scheme() != "oci":
		return errors.New("a pull secret without an oci:// URL: it is for image registries")
	}
	if f.PullSecret != "" {
		return checkName("pull secret", f.PullSecret)
	}
	return nil
}

// checkPlace checks what follows the scheme.
func (f Fetch) checkPlace() error {
	switch f.Scheme() {
	case "oci":
		if !imageName.MatchString(f.Image()) {
			return fmt.Errorf("url %q: want oci://REGISTRY/IMAGE:TAG, the tag or @sha256:DIGEST optional", f.URL)
		}
		_, digest, pinned := strings.Cut(f.Image(), "@sha256:")
		if pinned && f.SHA256 != "" && f.SHA256 != digest {
			return errors.New("sha256 is not the digest in the url: give one of the two")
		}
	case "file":
		path := strings.TrimPrefix(f.URL, "file://")
		if !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") || strings.ContainsAny(path, "?#% \t\r\n") {
			return fmt.Errorf("url %q: want file:///PATH, the path absolute and in the proxy's container", f.URL)
		}
	default:
		u, err := url.Parse(f.URL)
		if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
			return fmt.Errorf("url %q: want %s://HOST/PATH, without user or fragment", f.URL, f.Scheme())
		}
	}
	return nil
}

// Target is a resource that a policy attaches to, in its own namespace.
type Target struct {
	Group, Kind, Name string
	Section           string // of a Gateway or route; empty = all of it
}

// parseTarget reads KIND/NAME or, if there are sections, KIND/NAME/SECTION. groups has the API
// group of each kind.
func parseTarget(text string, groups map[string]string, kinds string, sections bool) (Target, error) {
	form := "KIND/NAME"
	if sections {
		form += " or KIND/NAME/SECTION"
	}
	parts := strings.Split(text, "/")
	if len(parts) != 2 && (len(parts) != 3 || !sections) {
		return Target{}, fmt.Errorf("target %q: want %s, such as Gateway/edge", text, form)
	}
	group, known := groups[parts[0]]
	if !known {
		return Target{}, fmt.Errorf("target %q: the kind must be %s", text, kinds)
	}
	t := Target{Group: group, Kind: parts[0], Name: parts[1]}
	if err := checkName(fmt.Sprintf("target %q: name", text), t.Name); err != nil {
		return Target{}, err
	}
	if len(parts) == 3 {
		t.Section = parts[2]
		if err := checkName(fmt.Sprintf("target %q: section", text), t.Section); err != nil {
			return Target{}, err
		}
	}
	return t, nil
}

func parseTargets(texts []string, groups map[string]string, kinds string, sections bool) ([]Target, error) {
	if len(texts) > maxTargets {
		return nil, fmt.Errorf("%d targets: at most %d are allowed", len(texts), maxTargets)
	}
	var targets []Target
	for _, text := range texts {
		t, err := parseTarget(text, groups, kinds, sections)
		if err != nil {
			return nil, err
		}
		for _, other := range targets {
			if t == other {
				return nil, fmt.Errorf("target %q is given twice", text)
			}
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// Quota is how rules of scope cluster reach the quota service in a mesh. It is zero for a policy
// without such rules.
type Quota struct {
	Cluster string        // the mesh's name of the cluster, which is written into the policy
	Timeout time.Duration // of the policy
}

func (q Quota) check() error {
	unprintable := func(c rune) bool { return c < ' ' || c > '~' }
	if len(q.Cluster) > policy.MaxClusterBytes || strings.ContainsFunc(q.Cluster, unprintable) {
		return fmt.Errorf("quota cluster %q: want at most %d characters of ASCII that can be printed, such as %s",
			q.Cluster, policy.MaxClusterBytes, "outbound|18001||quota.shop.svc.cluster.local")
	}
	return nil
}

// Connect is how long the cluster may try to connect, less than the time that a request waits.
func (q Quota) Connect() time.Duration { return q.Timeout / 2 }

// put writes the cluster's name into a policy.
func (q Quota) put(document *yaml.Node) {
	if q.Cluster == "" {
		return
	}
	section := member(document, "quota")
	if section == nil {
		if q.Cluster == DefaultQuotaCluster {
			return
		}
		section = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: yaml.FlowStyle}
		document.Content = append(document.Content, word("quota"), section)
	}
	if section.Alias != nil {
		section = section.Alias
	}
	if cluster := member(section, "cluster"); cluster != nil {
		*cluster = *word(q.Cluster)
	} else {
		section.Content = append(section.Content, word("cluster"), word(q.Cluster))
	}
}

// member returns the value of a field, nil if there is none.
func member(object *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == name {
			return object.Content[i+1]
		}
	}
	return nil
}

func word(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// ConfigMap has the filter's binary, and the proxies' pods mount it.
type ConfigMap struct {
	Name string // empty = none
	File string // of the binary, on the machine where the ConfigMap is made
}

// MaxConfigMap is how many bytes of data Kubernetes takes in a ConfigMap.
const MaxConfigMap = 1 << 20

// Folder is where the proxy's container has its files.
func (ConfigMap) Folder() string { return "/var/lib/sluice-filter" }

func (c ConfigMap) url() string { return "file://" + c.Folder() + "/sluice.wasm" }

// check refuses a path that could not be written in a comment and in the shell's quotes.
func (c ConfigMap) check() error {
	if c.Name == "" {
		return nil
	}
	if c.File == "" || strings.ContainsFunc(c.File, func(r rune) bool { return r == '\'' || !unicode.IsPrint(r) }) {
		return fmt.Errorf("file %q for the ConfigMap: want a path without quotes and line breaks", c.File)
	}
	return checkName("ConfigMap", c.Name)
}
