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

// border separates the documents of a file.
var border = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?\r?$`)

// maxDocuments bounds the work on a file, as each is read with its place in it.
const maxDocuments = 100

// parse parses a file: its document, or a list of its documents.
func parse(f File) (*policy.Node, error) {
	root := &policy.Node{Kind: policy.List, Line: 1, Column: 1}
	begin, borders := 0, append(border.FindAllIndex(f.Text, -1), []int{len(f.Text), len(f.Text)})
	if len(borders) > maxDocuments {
		return nil, policyfile.Errors{{File: f.Name, Message: "there are more than " + strconv.Itoa(maxDocuments) + " documents in it: " +
			"give those with limits"}}
	}
	for _, at := range borders {
		text := f.Text[begin:at[0]]
		if blank.Match(text) {
			begin = at[1]
			continue
		}
		lines := strings.Repeat("\n", strings.Count(string(f.Text[:begin]), "\n")) // so that places are the file's
		n, err := policyfile.Parse(f.Name, append([]byte(lines), text...))
		if err != nil {
			return nil, err
		}
		root.Items, begin = append(root.Items, n), at[1]
	}
	switch len(root.Items) {
	case 0:
		return nil, policyfile.Errors{{File: f.Name, Message: "the file is empty"}}
	case 1:
		return root.Items[0], nil
	}
	return root, nil
}

var blank = regexp.MustCompile(`^(\s*(#.*)?(\n|$))*$`)

// open parses a file.
func (r *reader) open(f File) (*source, error) {
	root, err := parse(f)
	if err != nil {
		return nil, err
	}
	in := &source{reader: r, file: f.Name, root: root}
	if root.Kind != policy.Object && root.Kind != policy.List {
		in.fail(root, "", "must be an object, not "+kindNames[root.Kind])
	}
	return in, r.err()
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
var ofEnvoy = []string{"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type"}

// refuse refuses a file of another kind than the command reads, by its name and
// with what can be done.
func (in *source) refuse(ofService bool) {
	n := in.root
	if of := append(ofKind(n, "EnvoyFilter"), resources(n)...); len(of) > 0 {
		n = of[0]
	}
	kind, does := textOf(n, "kind"), "a configuration of Envoy"
	if kind != "" {
		does = strings.Replace("a "+clip(kind, 100), "a E", "an E", 1)
	}
	has := func(field string) bool { return fieldOf(n, field) != nil }
	switch isEnvoy := kind == "EnvoyFilter" || kind == "" && slices.ContainsFunc(ofEnvoy, has); {
	case isEnvoy && ofService:
		does += ": give it as --routes, beside the configuration of envoyproxy/ratelimit, or to sluice import local-ratelimit"
	case isEnvoy, kind == "BackendTrafficPolicy", kind == "List":
		return
	case kind == "ConfigMap":
		does += `: give what it holds as a file, such as that of kubectl get configmap NAME -o 'jsonpath={.data.FILE\.yaml}'`
	case kind != "":
		does += " (" + clip(textOf(n, "api_version"), 100) + "), which the import does not read: write its limits as rules of a policy"
	case has("rules") && has("version"):
		does = "a policy already: sluice validate reads it"
	case !ofService && has("domain") && has("descriptors"):
		does = "a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit"
	default:
		return
	}
	in.fail(n, "", "this is "+does)
}

// nothing says why there is no rate limit in a file: a name that is spelled
// wrongly, or a filter that the import does not read.
func (in *source) nothing(root *policy.Node) error {
	known := []string{"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
		"typed_per_filter_config", "virtual_hosts"}
	unread, routed := "", false
	contains(root, func(n *policy.Node) bool {
		for _, f := range n.Fields {
			near := message.Nearest(f.Name, known)
			isKnown := slices.ContainsFunc(known, func(k string) bool { return isField(f.Name, k) })
			if d := len(near) - len(f.Name); near != "" && !isKnown && -1 <= d && d <= 1 {
				in.fail(&policy.Node{Line: f.Line, Column: f.Column}, f.Name, `unknown field: did you mean "`+near+`"?`)
			}
			routed = routed || isField(f.Name, "rate_limits")
		}
		if t := typeOf(textOf(n, "@type")); strings.Contains(t, "ratelimit") || strings.Contains(t, "rate_limit") {
			unread = t
		}
		return false
	})
	err := in.err()
	switch {
	case err != nil:
	case routed, strings.HasPrefix(unread, serviceFilter[:len(serviceFilter)-1]):
		err = fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", ErrNothing)
	case unread != "":
		err = fmt.Errorf("%w: %s is not read", ErrNothing, unread)
	}
	return err
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
		return object(root, policy.Field{Name: "virtual_hosts", Value: list})
	case has("route", "typed_per_filter_config") && !has("rate_limits", "domains", "virtual_hosts"):
		for i, n := range list.Items {
			if fieldOf(n, "match") == nil { // as a patch has it
				list.Items[i] = matched(n, everyRequest(n))
			}
		}
		return in.whole(object(root, policy.Field{Name: "routes", Value: list}))
	}
	return root
}

// patched is the listener that EnvoyFilters make, as far as their patches say.
func (in *source) patched(envoyFilters []*policy.Node) *policy.Node {
	root, filters, hosts := envoyFilters[0], listOf(), listOf()
	for _, e := range envoyFilters {
		for _, p := range itemsOf(e, "spec", "config_patches") {
			value := fieldOf(p, "patch", "value")
			vhost := fieldOf(p, "match", "route_configuration", "vhost")
			switch to := textOf(p, "apply_to"); {
			case value == nil:
			case to == "HTTP_FILTER":
				filters.Items = append(filters.Items, value)
			case to == "VIRTUAL_HOST", to == "ROUTE_CONFIGURATION":
				h := hostOf(hosts, p, textOf(vhost, "name"))
				h.Fields = append(h.Fields, value.Fields...)
			case to == "HTTP_ROUTE":
				match := everyRequest(p)
				if name := textOf(vhost, "route", "name"); name != "" {
					match = object(p)
					in.add(in.placeOf(p), "the patch is for the route "+name+", and the EnvoyFilter does not say for which requests "+
						"that is: its rules are off until they have a match")
				}
				routes := fieldOf(hostOf(hosts, p, textOf(vhost, "name")), "routes")
				routes.Items = append(routes.Items, matched(value, match))
			}
		}
	}
	for _, h := range hosts.Items {
		if routes := fieldOf(h, "routes"); len(routes.Items) == 0 {
			routes.Items = []*policy.Node{matched(object(h), everyRequest(h))}
		}
	}
	in.add(place{}, "An EnvoyFilter is for the workloads and listeners that it selects. Here the rules are for every request of the "+
		"proxies that get the policy.")
	made := object(root, policy.Field{Name: "http_filters", Value: filters})
	if len(hosts.Items) > 0 {
		routing := object(root, policy.Field{Name: "virtual_hosts", Value: hosts})
		made.Fields = append(made.Fields, policy.Field{Name: "route_config", Value: routing})
	}
	return made
}

// hostOf is the virtual host that Istio names by its domain, or in a way that
// stands for every request.
func hostOf(hosts *policy.Node, at *policy.Node, domain string) *policy.Node {
	if domain == "" || strings.HasPrefix(domain, "inbound|") || strings.HasPrefix(domain, "*") && !strings.HasPrefix(domain, "*.") {
		domain = "*"
	}
	for _, h := range hosts.Items {
		if itemsOf(h, "domains")[0].Text == domain {
			return h
		}
	}
	h := object(at, policy.Field{Name: "domains", Value: listOf(text(at, domain))}, policy.Field{Name: "routes", Value: listOf()})
	hosts.Items = append(hosts.Items, h)
	return h
}

// object is an object with these fields, at the place of a node.
func object(at *policy.Node, fields ...policy.Field) *policy.Node {
	return &policy.Node{Kind: policy.Object, Fields: fields, Line: at.Line, Column: at.Column}
}

// matched is a route with a match.
func matched(route, match *policy.Node) *policy.Node {
	at := policy.Field{Name: "match", Value: match, Line: match.Line, Column: match.Column}
	return object(route, append(slices.Clip(route.Fields), at)...)
}

func everyRequest(at *policy.Node) *policy.Node {
	return object(at, policy.Field{Name: "prefix", Value: text(at, "/")})
}

func text(at *policy.Node, s string) *policy.Node {
	return &policy.Node{Kind: policy.String, Text: s, Line: at.Line, Column: at.Column}
}

func listOf(items ...*policy.Node) *policy.Node { return &policy.Node{Kind: policy.List, Items: items} }
