package nginx

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// ReadIngresses makes rules of the annotations of Ingress objects by which ingress-nginx limits requests.
//
// It follows what the controller makes of them (internal/ingress/annotations/ratelimit/main.go,
// buildRateLimitZones and buildRateLimit in controller/template/template.go): zones of their own for each
// Ingress, by client address; limit_req with burst = limit × multiplier and nodelay; limit_conn; an
// empty key for the addresses that are allowed. Each replica of the controller counts for itself.
//
// An example: an Ingress shop of the host a.example has the annotation limit-rpm: "30". The rule is
//
//	rules:
//	- name: shop-rpm
//	  match: {hosts: [a.example]}
//	  key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]
//	  algorithm: token_bucket
//	  limits: [{requests: 30, per: 1m, burst: 151}]    5 times the limit, and one more as for nginx
//	  response: {status: 503}
func ReadIngresses(d *draft.Draft, files []*source.Document) error {
	c := &ingressImport{Draft: d}
	for _, in := range files {
		for i, node := range source.Resources(in.Root) {
			if source.TextOf(node, "kind") == "Ingress" {
				c.all = append(c.all, readIngress(node, in.Top().At(i)))
			}
		}
	}
	withExpressions := hostsWithExpressions(c.all)
	for _, ing := range c.all {
		ing.readPaths(c.Findings, withExpressions)
	}
	for _, ing := range c.all {
		c.limitIngress(ing)
	}
	return nil
}

// ingressImport is one import of Ingress objects.
type ingressImport struct {
	*draft.Draft
	all []*ingress
}

// annotationPrefix begins the names of ingress-nginx' annotations.
const annotationPrefix = "nginx.ingress.kubernetes.io/"

// defaultMultiplier is how many times the limit a burst is.
const defaultMultiplier = 5

// ingress is an Ingress object with its requests.
type ingress struct {
	node     *policy.Node
	at       source.Place
	name     string // with the namespace
	isCanary bool
	requests []ingressPath
}

// ingressPath is one path of one host; the host is empty for those that no Ingress names.
type ingressPath struct {
	host string
	path request.Pattern
}

// readIngress reads what an Ingress says of itself.
func readIngress(node *policy.Node, at source.Place) *ingress {
	ing := &ingress{node: node, at: at, name: source.TextOf(node, "metadata", "name")}
	ing.at.Path = strings.TrimPrefix(ing.at.Path, "[0]") // most files have one resource
	if namespace := source.TextOf(node, "metadata", "namespace"); namespace != "" {
		ing.name = namespace + "/" + ing.name
	}
	ing.isCanary = ing.annotation("canary") == "true"
	return ing
}

// annotation is an annotation of ingress-nginx; empty if it is absent.
func (ing *ingress) annotation(name string) string {
	annotations := source.FieldOf(ing.node, "metadata", "annotations")
	if annotations == nil {
		return ""
	}
	for _, f := range annotations.Fields {
		if f.Name == annotationPrefix+name {
			return f.Value.Text
		}
	}
	return ""
}

// number reads an annotation that is a number; unset if it is not there.
func (c *ingressImport) number(ing *ingress, name string, unset uint64) uint64 {
	text := ing.annotation(name)
	if text == "" {
		return unset
	}
	number, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		c.Fail(ing.annotationAt(name), "must be a whole number such as \"10\", not "+strconv.Quote(text))
	}
	return number
}

func (ing *ingress) annotationAt(name string) source.Place {
	return ing.at.In("metadata.annotations[" + strconv.Quote(annotationPrefix+name) + "]")
}

// hostsWithExpressions are the hosts whose paths are all expressions: ingress-nginx makes them so if one
// Ingress of the host has use-regex or a rewrite-target.
func hostsWithExpressions(list []*ingress) map[string]bool {
	hosts := map[string]bool{}
	for _, ing := range list {
		if ing.annotation("use-regex") == "true" || ing.annotation("rewrite-target") != "" {
			for _, ofHost := range source.ItemsOf(ing.node, "spec", "rules") {
				hosts[strings.ToLower(source.TextOf(ofHost, "host"))] = true
			}
		}
	}
	return hosts
}

// readPaths reads the hosts and paths of an Ingress. A default backend has all hosts that no Ingress names.
func (ing *ingress) readPaths(findings *draft.Findings, withExpressions map[string]bool) {
	rules := source.ItemsOf(ing.node, "spec", "rules")
	if len(rules) == 0 || source.FieldOf(ing.node, "spec", "default_backend") != nil {
		ing.requests = append(ing.requests, ingressPath{path: request.AnyPath})
	}
	for i, ofHost := range rules {
		name := strings.ToLower(source.TextOf(ofHost, "host"))
		paths := source.ItemsOf(ofHost, "http", "paths")
		if len(paths) == 0 {
			ing.requests = append(ing.requests, ingressPath{name, request.AnyPath})
		}
		for k, p := range paths {
			text := source.TextOf(p, "path")
			path, ok := ingressPattern(text, source.TextOf(p, "path_type"), withExpressions[name])
			if !ok {
				at := ing.at.Item("spec.rules", i).Item("http.paths", k)
				findings.Fail(at, "the path "+strconv.Quote(text)+" must begin with /, and be an expression of RE2 where "+
					"use-regex or rewrite-target makes it one")
			}
			ing.requests = append(ing.requests, ingressPath{name, path})
		}
	}
}

// ingressPattern is the pattern of a path, as buildLocation of ingress-nginx makes a location of it.
func ingressPattern(path, pathType string, isExpression bool) (p request.Pattern, ok bool) {
	path = cmp.Or(path, "/")
	bare := strings.TrimRight(path, "/")
	switch {
	case isExpression:
		return searched("^"+path, true)
	case pathType == "Exact":
		p = request.Exact(path)
	case pathType == "Prefix" && bare != "":
		p = request.OrBelow(bare)
	default:
		p = request.Prefix(path, false)
	}
	return p, strings.HasPrefix(path, "/")
}

// limitIngress makes the rules of one Ingress.
func (c *ingressImport) limitIngress(ing *ingress) {
	for _, name := range []string{"limit-rate", "limit-rate-after"} {
		if ing.annotation(name) != "" {
			c.Note(ing.annotationAt(name), "ignored: it limits bytes a second, and a policy limits requests")
		}
	}
	c.refuseUnknownLimits(ing)
	if ing.annotation("global-rate-limit") != "" {
		c.Note(ing.annotationAt("global-rate-limit"), "ignored: write this limit as a rule with scope: cluster")
	}
	multiplier := c.number(ing, "limit-burst-multiplier", defaultMultiplier)
	if multiplier == 0 {
		c.Fail(ing.annotationAt("limit-burst-multiplier"), "must be at least 1")
	}
	for _, per := range []struct{ annotation, per string }{{"limit-rps", "1s"}, {"limit-rpm", "1m"}} {
		requests := c.number(ing, per.annotation, 0)
		burst := min(requests*multiplier+1, 1<<32-1) // one more, as for nginx
		c.addIngressRules(ing, per.annotation, draft.TokenBucket(requests, per.per, burst))
	}
	connections := c.number(ing, "limit-connections", 0)
	c.addIngressRules(ing, "limit-connections", draft.Concurrency(connections))
}

// knownLimits are the annotations about limits that ingress-nginx reads. It passes over others.
var knownLimits = []string{
	"limit-rps", "limit-rpm", "limit-connections", "limit-burst-multiplier", "limit-allowlist", "limit-whitelist",
	"limit-rate", "limit-rate-after",
}

// refuseUnknownLimits fails for annotations that look like limits and that ingress-nginx does not know.
func (c *ingressImport) refuseUnknownLimits(ing *ingress) {
	annotations := source.FieldOf(ing.node, "metadata", "annotations")
	if annotations == nil {
		return
	}
	for _, f := range annotations.Fields {
		name, ok := strings.CutPrefix(f.Name, annotationPrefix)
		if ok && strings.HasPrefix(name, "limit-") && !slices.Contains(knownLimits, name) {
			c.Fail(ing.annotationAt(name), "is no annotation of ingress-nginx, which has "+strings.Join(knownLimits, ", "))
		}
	}
}

// addIngressRules makes the rules of one annotation: one, or one for each set of paths that hosts have.
func (c *ingressImport) addIngressRules(ing *ingress, annotation string, numbers draft.Numbers) {
	at := ing.annotationAt(annotation)
	switch {
	case numbers.Requests == 0:
		return
	case ing.isCanary:
		c.Note(at, "ignored, as ingress-nginx does: the limits of a canary are those of the Ingress that it belongs to")
		return
	}
	allowed := c.allowedNetworks(ing)
	for _, s := range ing.selections(c.all) {
		s.Exempt = slices.Concat(allowed, s.Exempt)
		name := ing.name + "-" + strings.TrimPrefix(annotation, "limit-")
		r := newRule(c.Findings, name, &draft.Quota{Numbers: numbers, At: at}, s)
		r.Key = []request.Part{request.ClientIP}
		r.Response = &draft.Response{Status: 503} // the default of limit-req-status-code and limit-conn-status-code
		r.Identity = at.String()
		c.Rules = append(c.Rules, r.Finish())
	}
}

// allowedNetworks exempts the networks that the Ingress does not limit.
func (c *ingressImport) allowedNetworks(ing *ingress) []request.Match {
	var list []request.Pattern
	for _, name := range []string{"limit-allowlist", "limit-whitelist"} {
		for text := range strings.SplitSeq(ing.annotation(name), ",") {
			text = strings.TrimSpace(text)
			network, ok := request.NetworkOf(text)
			switch {
			case text == "":
			case !ok:
				c.Fail(ing.annotationAt(name), "must have networks such as 10.0.0.0/8, not "+strconv.Quote(text))
			case network.IsSingleIP():
				list = append(list, request.Exact(network.Addr().String()))
			default:
				list = append(list, request.Exact(network.String()))
			}
		}
		if len(list) > 0 { // the second is another name of the first
			break
		}
	}
	if len(list) == 0 {
		return nil
	}
	return []request.Match{request.ClientIP.Matching(list...)}
}

// selections are the requests of an Ingress: hosts with the same paths come together.
func (ing *ingress) selections(all []*ingress) (list []request.Selection) {
	var hosts []string
	paths := map[string][]request.Pattern{}
	for _, q := range ing.requests {
		if paths[q.host] == nil {
			hosts = append(hosts, q.host)
		}
		paths[q.host] = request.AppendNew(paths[q.host], []request.Pattern{q.path})
	}
	for i, h := range hosts {
		isLike := func(other string) bool { return (h == "") == (other == "") && slices.Equal(paths[h], paths[other]) }
		if slices.IndexFunc(hosts, isLike) < i {
			continue
		}
		var alike []string
		for _, other := range hosts {
			if isLike(other) {
				alike = append(alike, other)
			}
		}
		list = append(list, ing.selection(alike, paths[h], all))
	}
	return list
}

// selection is for the requests of hosts with paths, without those that ingress-nginx gives to a longer
// path or a narrower host of another Ingress. An example:
//
//	Ingress   its host and path   its requests
//	shop      a.example /         those of a.example, but not /api and what is below it
//	api       a.example /api      those of a.example with the path /api or one below it
//	all       *.example /         those of *.example, but not of a.example
func (ing *ingress) selection(hosts []string, paths []request.Pattern, all []*ingress) (s request.Selection) {
	s.Match = request.Match{}
	if hosts[0] != "" {
		s.Match[request.Host.ID()] = request.ExactAll(hosts)
	}
	if !slices.Contains(paths, request.AnyPath) {
		s.Match[request.FullPath.ID()] = spelledOut(paths)
	}
	for _, other := range all {
		if other == ing || other.isCanary {
			continue
		}
		for _, q := range other.requests {
			leaveOutPath(&s, hosts, paths, q)
		}
	}
	return s
}

// leaveOutPath leaves the requests of another Ingress' path out if the path wins.
func leaveOutPath(s *request.Selection, hosts []string, paths []request.Pattern, q ingressPath) {
	isNarrowerHost := func(h string) bool {
		isWithin := request.IsValueWithin(request.KindHost, request.Exact(q.host), request.Exact(h))
		return q.host != "" && q.host != h && (h == "" || isWithin)
	}
	wins := func(p request.Pattern) bool { return isLonger(q.path, p) && !p.TextApart(q.path) }
	switch {
	case slices.ContainsFunc(hosts, isNarrowerHost):
		s.AddExempt(request.Host.Matching(request.Exact(q.host)))
	case slices.Contains(hosts, q.host) && slices.ContainsFunc(paths, wins):
		m := request.FullPath.Matching(spelledOut([]request.Pattern{q.path})...)
		if len(hosts) > 1 {
			m[request.Host.ID()] = []request.Pattern{request.Exact(q.host)}
		}
		s.AddExempt(m)
	}
}

// isLonger reports whether nginx takes the location of a pattern before that of another one: the longer
// one, or the exact one of two with one text. Locations with expressions are sorted by length too.
func isLonger(p, other request.Pattern) bool {
	length := func(p request.Pattern) int {
		if p.Kind == request.ByExpression {
			return len(p.Text)
		}
		begin, _ := p.Begin()
		return len(begin)
	}
	isSame := length(p) == length(other)
	return length(p) > length(other) || isSame && p.Kind == request.Exactly && other.Kind != request.Exactly
}

// spelledOut has two patterns for a path and what is below it: a list needs no expression for that.
func spelledOut(paths []request.Pattern) (list []request.Pattern) {
	for _, p := range paths {
		if p.Kind == request.PathOrBelow {
			list = append(list, request.Exact(p.Text), request.Prefix(p.Text+"/", false))
		} else {
			list = append(list, p)
		}
	}
	return list
}
