package importer

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// source is one file: its document, or a list of its documents.
type source struct {
	*reader
	file string
	root *policy.Node
}

// top is the place of what the file begins with.
func (in *source) top() place { return place{file: in.file} }

// open parses a file.
func (r *reader) open(f File) (*source, error) {
	root, err := parse(f)
	if err != nil {
		return nil, err
	}
	in := &source{reader: r, file: f.Name, root: root}
	if root.Kind != policy.Object && root.Kind != policy.List {
		r.fail(in.top(), "must be an object, not "+message.Describe(root))
	}
	return in, r.err()
}

// border separates the documents of a file, and blank is a document without anything.
var (
	border = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?\r?$`)
	blank  = regexp.MustCompile(`^(\s*(#.*)?(\n|$))*$`)
)

// maxDocuments bounds the work on a file, as each document is parsed with its lines in it.
const maxDocuments = 100

// parse parses a file: its document, or a list of its documents.
func parse(f File) (*policy.Node, error) {
	root := &policy.Node{Kind: policy.List}
	borders := append(border.FindAllIndex(f.Text, -1), []int{len(f.Text), len(f.Text)})
	if len(borders) > maxDocuments {
		return nil, policyfile.Errors{{File: f.Name, Message: "there are more than " + strconv.Itoa(maxDocuments) +
			" documents in it: give those with limits"}}
	}
	begin := 0
	for _, at := range borders {
		text := f.Text[begin:at[0]]
		lines := strings.Count(string(f.Text[:begin]), "\n")
		begin = at[1]
		if blank.Match(text) {
			continue
		}
		n, err := policyfile.Parse(f.Name, append([]byte(strings.Repeat("\n", lines)), text...)) // the file's line numbers
		if err != nil {
			return nil, err
		}
		root.Items = append(root.Items, n)
	}
	switch len(root.Items) {
	case 0:
		return nil, policyfile.Errors{{File: f.Name, Message: "the file is empty"}}
	case 1:
		return root.Items[0], nil
	}
	return root, nil
}

// resources are the documents of a file, also those in a List of Kubernetes.
func resources(root *policy.Node) []*policy.Node {
	items := fieldOf(root, "items")
	switch {
	case root.Kind == policy.List:
		return root.Items
	case textOf(root, "kind") == "List" && items != nil:
		return items.Items
	}
	return []*policy.Node{root}
}

// ofKind are the resources of a kind.
func ofKind(root *policy.Node, kind string) (list []*policy.Node) {
	for _, n := range resources(root) {
		if textOf(n, "kind") == kind {
			list = append(list, n)
		}
	}
	return list
}

// ofEnvoy are fields that a configuration of Envoy, or a part of it, begins with.
var ofEnvoy = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// refuse rejects a file of another kind than the command reads: it says what the file is, and what to do.
func (in *source) refuse(ofService bool) {
	n := in.root
	if of := append(ofKind(n, "EnvoyFilter"), resources(n)...); len(of) > 0 {
		n = of[0]
	}
	has := func(field string) bool { return fieldOf(n, field) != nil }
	kind := textOf(n, "kind")
	isEnvoy := kind == "EnvoyFilter" || kind == "" && slices.ContainsFunc(ofEnvoy, has)
	switch {
	case isEnvoy && ofService:
		is := "a configuration of Envoy"
		if kind != "" {
			is = "an EnvoyFilter"
		}
		in.fail(in.top(), "this is "+is+": give it as --routes, beside the configuration of envoyproxy/ratelimit, or to "+
			"sluice import local-ratelimit")
	case isEnvoy, kind == "BackendTrafficPolicy", kind == "List":
	case kind == "ConfigMap":
		in.fail(in.top(), `this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap NAME `+
			`-o 'jsonpath={.data.FILE\.yaml}'`)
	case kind != "":
		in.fail(in.top(), "this is a "+clip(kind, 100)+" ("+clip(textOf(n, "api_version"), 100)+
			"), which the import does not read: write its limits as rules of a policy")
	case has("rules") && has("version"):
		in.fail(in.top(), "this is a policy already: sluice validate reads it")
	case !ofService && has("domain") && has("descriptors"):
		in.fail(in.top(), "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit")
	}
}

// openEnvoy opens a configuration of Envoy, or a part of one as the whole.
func (r *reader) openEnvoy(f File) (*source, error) {
	in, err := r.open(f)
	if err != nil {
		return nil, err
	}
	return in, in.asEnvoy()
}

// asEnvoy has the file read as a configuration of Envoy.
func (in *source) asEnvoy() error {
	in.refuse(false)
	in.root = in.whole(in.root)
	return in.err()
}

// limitFields are the fields that lead to the limits of a configuration of Envoy.
var limitFields = []string{
	"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
	"typed_per_filter_config", "virtual_hosts",
}

// whyNothing says why there is no rate limit in a file: a name that is spelled wrongly, or a filter
// that the import does not read.
func (in *source) whyNothing() error {
	unread := ""
	contains(in.root, func(n *policy.Node) bool {
		in.refuseTypos(n, in.top(), limitFields)
		if t := typeOf(textOf(n, "@type")); strings.Contains(t, "ratelimit") || strings.Contains(t, "rate_limit") {
			unread = t
		}
		return false
	})
	hasActions := contains(in.root, func(n *policy.Node) bool { return fieldOf(n, "rate_limits") != nil })
	switch {
	case in.err() != nil:
		return in.err()
	case hasActions, strings.HasPrefix(unread, strings.TrimSuffix(serviceFilter, ".")):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", ErrNothing)
	case unread != "":
		return fmt.Errorf("%w: %s is not read", ErrNothing, unread)
	}
	return nil
}

// whole makes the configuration of Envoy of EnvoyFilters and of parts of it.
func (in *source) whole(root *policy.Node) *policy.Node {
	if filters := ofKind(root, "EnvoyFilter"); len(filters) > 0 {
		return in.patched(filters)
	}
	list := root
	if root.Kind != policy.List {
		list = listOf(root)
	}
	has := func(names ...string) bool {
		return len(list.Items) > 0 && !slices.ContainsFunc(list.Items, func(n *policy.Node) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return fieldOf(n, name) != nil })
		})
	}
	switch {
	case has("routes"):
		return object(field("virtual_hosts", list))
	case has("route", "typed_per_filter_config") && !has("rate_limits", "domains", "virtual_hosts"):
		routes := listOf()
		for _, n := range list.Items {
			if fieldOf(n, "match") == nil { // as a patch has it
				n = matched(n, everyRequest())
			}
			routes.Items = append(routes.Items, n)
		}
		return object(field("virtual_hosts", listOf(object(field("routes", routes)))))
	}
	return root
}

// patched is the listener that the patches of EnvoyFilters make.
func (in *source) patched(envoyFilters []*policy.Node) *policy.Node {
	filters, hosts := listOf(), listOf()
	for _, e := range envoyFilters {
		for _, p := range itemsOf(e, "spec", "config_patches") {
			value := fieldOf(p, "patch", "value")
			vhost := fieldOf(p, "match", "route_configuration", "vhost")
			switch to := textOf(p, "apply_to"); {
			case value == nil:
			case to == "HTTP_FILTER":
				filters.Items = append(filters.Items, value)
			case to == "VIRTUAL_HOST", to == "ROUTE_CONFIGURATION":
				h := hostOf(hosts, textOf(vhost, "name"))
				h.Fields = append(h.Fields, value.Fields...)
			case to == "HTTP_ROUTE":
				match := everyRequest()
				if name := textOf(vhost, "route", "name"); name != "" {
					match = object()
					in.note(in.top(), "an EnvoyFilter is for the route "+name+", and does not say which requests that route takes: "+
						"its rules are off until they have a match")
				}
				routes := fieldOf(hostOf(hosts, textOf(vhost, "name")), "routes")
				routes.Items = append(routes.Items, matched(value, match))
			}
		}
	}
	for _, h := range hosts.Items {
		if routes := fieldOf(h, "routes"); len(routes.Items) == 0 {
			routes.Items = []*policy.Node{matched(object(), everyRequest())}
		}
	}
	in.note(place{}, "An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for every "+
		"request of the proxies that get the policy.")
	listener := object(field("http_filters", filters))
	if len(hosts.Items) > 0 {
		listener.Fields = append(listener.Fields, field("route_config", object(field("virtual_hosts", hosts))))
	}
	return listener
}

// hostOf is the virtual host that Istio names by its domain, or in a way that stands for every
// request.
func hostOf(hosts *policy.Node, domain string) *policy.Node {
	isAnyName := strings.HasPrefix(domain, "*") && !strings.HasPrefix(domain, "*.")
	if domain == "" || isAnyName || strings.HasPrefix(domain, "inbound|") {
		domain = "*"
	}
	for _, h := range hosts.Items {
		if itemsOf(h, "domains")[0].Text == domain {
			return h
		}
	}
	h := object(field("domains", listOf(text(domain))), field("routes", listOf()))
	hosts.Items = append(hosts.Items, h)
	return h
}

// matched is a route with a match.
func matched(route, match *policy.Node) *policy.Node {
	return object(append(slices.Clip(route.Fields), field("match", match))...)
}

func everyRequest() *policy.Node { return object(field("prefix", text("/"))) }

// fieldOf is the value of an object's field by its name in protocol buffers, also where it is
// written as in their JSON, or of a field in it, and so on; nil if it is absent or null.
func fieldOf(n *policy.Node, names ...string) *policy.Node {
	for _, name := range names {
		if n == nil {
			break
		}
		isIt := func(f policy.Field) bool { return isField(f.Name, name) && f.Value.Kind != policy.Null }
		at := slices.IndexFunc(n.Fields, isIt)
		if at < 0 {
			return nil
		}
		n = n.Fields[at].Value
	}
	return n
}

// textOf is the text of such a field.
func textOf(n *policy.Node, names ...string) string {
	if v := fieldOf(n, names...); v != nil {
		return v.Text
	}
	return ""
}

// itemsOf are the items of such a field.
func itemsOf(n *policy.Node, names ...string) []*policy.Node {
	if v := fieldOf(n, names...); v != nil {
		return v.Items
	}
	return nil
}

// isField reports whether a field is written in one of the two ways.
func isField(written, name string) bool {
	return written == name || strings.EqualFold(written, strings.ReplaceAll(name, "_", ""))
}

// contains reports whether an object in the tree is wanted.
func contains(n *policy.Node, wants func(n *policy.Node) bool) bool {
	return n != nil && (wants(n) ||
		slices.ContainsFunc(n.Items, func(item *policy.Node) bool { return contains(item, wants) }) ||
		slices.ContainsFunc(n.Fields, func(f policy.Field) bool { return contains(f.Value, wants) }))
}

func object(fields ...policy.Field) *policy.Node {
	return &policy.Node{Kind: policy.Object, Fields: fields}
}

func field(name string, value *policy.Node) policy.Field {
	return policy.Field{Name: name, Value: value}
}

func text(s string) *policy.Node { return &policy.Node{Kind: policy.String, Text: s} }

func listOf(items ...*policy.Node) *policy.Node { return &policy.Node{Kind: policy.List, Items: items} }
