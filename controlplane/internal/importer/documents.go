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
	in := &source{file: f.Name, root: root}
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

// ofEnvoy are fields that a configuration of Envoy, or a part of it, begins with.
var ofEnvoy = []string{
	"static_resources", "configs", "resources", "filter_chains", "http_filters", "virtual_hosts", "routes", "match",
	"typed_config", "typed_per_filter_config", "token_bucket", "@type",
}

// refuse rejects a file of another kind than the command reads: it says what the file is, and what to do.
func (r *reader) refuse(in *source, ofService bool) {
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
		r.fail(in.top(), "this is "+is+": give it as --routes, beside the configuration of envoyproxy/ratelimit, or to "+
			"sluice import local-ratelimit")
	case isEnvoy, kind == "BackendTrafficPolicy", kind == "List":
	case kind == "ConfigMap":
		r.fail(in.top(), `this is a ConfigMap: give what it holds as a file, such as that of kubectl get configmap NAME `+
			`-o 'jsonpath={.data.FILE\.yaml}'`)
	case kind != "":
		r.fail(in.top(), "this is a "+clip(kind, 100)+" ("+clip(textOf(n, "api_version"), 100)+
			"), which the import does not read: write its limits as rules of a policy")
	case has("rules") && has("version"):
		r.fail(in.top(), "this is a policy already: sluice validate reads it")
	case !ofService && has("domain") && has("descriptors"):
		r.fail(in.top(), "this is a configuration of envoyproxy/ratelimit: give it to sluice import envoy-ratelimit")
	}
}

// openEnvoy opens a configuration of Envoy, or a part of one as the whole.
func (r *reader) openEnvoy(f File) (*source, error) {
	in, err := r.open(f)
	if err != nil {
		return nil, err
	}
	return in, r.asEnvoy(in)
}

// asEnvoy has the file read as a configuration of Envoy.
func (r *reader) asEnvoy(in *source) error {
	r.refuse(in, false)
	in.root = r.whole(in)
	return r.err()
}

// limitFields are the fields that lead to the limits of a configuration of Envoy.
var limitFields = []string{
	"descriptors", "filter_chains", "http_filters", "rate_limits", "route_config", "token_bucket", "typed_config",
	"typed_per_filter_config", "virtual_hosts",
}

// whyNothing says why there is no rate limit in a file: a name that is spelled wrongly, or a filter
// that the import does not read.
func (r *reader) whyNothing(in *source) error {
	unread := ""
	contains(in.root, func(n *policy.Node) bool {
		r.refuseTypos(n, in.top(), limitFields)
		if t := typeOf(textOf(n, "@type")); strings.Contains(t, "ratelimit") || strings.Contains(t, "rate_limit") {
			unread = t
		}
		return false
	})
	hasActions := contains(in.root, func(n *policy.Node) bool { return fieldOf(n, "rate_limits") != nil })
	switch {
	case r.err() != nil:
		return r.err()
	case hasActions, strings.HasPrefix(unread, strings.TrimSuffix(serviceFilter, ".")):
		return fmt.Errorf("%w: its rate_limits or its filter ask envoyproxy/ratelimit, so give the configuration of that to "+
			"sluice import envoy-ratelimit, and this file as --routes", ErrNothing)
	case unread != "":
		return fmt.Errorf("%w: %s is not read", ErrNothing, unread)
	}
	return nil
}

// whole makes the configuration of Envoy of EnvoyFilters and of parts of it.
func (r *reader) whole(in *source) *policy.Node {
	root := in.root
	if filters := ofKind(root, "EnvoyFilter"); len(filters) > 0 {
		return r.patched(filters, in.top())
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
