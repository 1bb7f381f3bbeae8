package importer

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// IngressNginx imports the annotations of Ingress objects by which ingress-nginx limits requests.
//
// It follows what the controller makes of them (internal/ingress/annotations/ratelimit/main.go,
// buildRateLimitZones and buildRateLimit in controller/template/template.go): zones of their own for each
// Ingress, by client address; limit_req with burst = limit × multiplier and nodelay; limit_conn; an
// empty key for the addresses that are allowed. Each replica of the controller counts for itself.
func IngressNginx(files []File, o Options) (Imported, error) {
	return run("ingress-nginx", files, o, (*job).ingresses)
}

// annotationPrefix begins the names of ingress-nginx' annotations.
const annotationPrefix = "nginx.ingress.kubernetes.io/"

// defaultMultiplier is how many times the limit a burst is.
const defaultMultiplier = 5

// ingress is an Ingress object with its requests.
type ingress struct {
	node     *policy.Node
	at       place
	name     string // with the namespace
	isCanary bool
	requests []ingressPath
}

// ingressPath is one path of one host; the host is empty for those that no Ingress names.
type ingressPath struct {
	host string
	path pattern
}

// ingresses makes a rule of each Ingress and annotation.
func (j *job) ingresses() error {
	var list []*ingress
	for _, in := range j.files {
		for i, n := range resources(in.root) {
			if textOf(n, "kind") == "Ingress" {
				list = append(list, j.readIngress(n, in.top().item("", i)))
			}
		}
	}
	withExpressions := hostsWithExpressions(list)
	for _, ing := range list {
		ing.readPaths(j.reader, withExpressions)
	}
	for _, ing := range list {
		j.limitIngress(ing, list)
	}
	return nil
}

// readIngress reads what an Ingress says of itself.
func (j *job) readIngress(n *policy.Node, at place) *ingress {
	ing := &ingress{node: n, at: at, name: textOf(n, "metadata", "name")}
	ing.at.path = strings.TrimPrefix(ing.at.path, "[0]")
	if namespace := textOf(n, "metadata", "namespace"); namespace != "" {
		ing.name = namespace + "/" + ing.name
	}
	ing.isCanary = ing.annotation("canary") == "true"
	return ing
}

// annotation is an annotation of ingress-nginx; empty if it is absent.
func (ing *ingress) annotation(name string) string {
	annotations := fieldOf(ing.node, "metadata", "annotations")
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
func (j *job) number(ing *ingress, name string, unset uint64) uint64 {
	text := ing.annotation(name)
	if text == "" {
		return unset
	}
	number, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		j.fail(ing.annotationAt(name), "must be a whole number such as \"10\", not "+strconv.Quote(text))
	}
	return number
}

func (ing *ingress) annotationAt(name string) place {
	return ing.at.in("metadata.annotations[" + strconv.Quote(annotationPrefix+name) + "]")
}

// hostsWithExpressions are the hosts whose paths are all expressions: ingress-nginx makes them so if one
// Ingress of the host has use-regex or a rewrite-target.
func hostsWithExpressions(list []*ingress) map[string]bool {
	hosts := map[string]bool{}
	for _, ing := range list {
		if ing.annotation("use-regex") == "true" || ing.annotation("rewrite-target") != "" {
			for _, r := range itemsOf(ing.node, "spec", "rules") {
				hosts[textOf(r, "host")] = true
			}
		}
	}
	return hosts
}

// readPaths reads the hosts and paths of an Ingress. A default backend has all hosts that no Ingress names.
func (ing *ingress) readPaths(r *reader, withExpressions map[string]bool) {
	rules := itemsOf(ing.node, "spec", "rules")
	if len(rules) == 0 || fieldOf(ing.node, "spec", "default_backend") != nil {
		ing.requests = append(ing.requests, ingressPath{path: pattern{wildcard, "/*"}})
	}
	for i, ofHost := range rules {
		name := strings.ToLower(textOf(ofHost, "host"))
		paths := itemsOf(ofHost, "http", "paths")
		if len(paths) == 0 {
			ing.requests = append(ing.requests, ingressPath{name, pattern{wildcard, "/*"}})
		}
		for k, p := range paths {
			path, ok := ingressPattern(textOf(p, "path"), textOf(p, "path_type"), withExpressions[name])
			if !ok {
				r.fail(ing.at.item("spec.rules", i).item("http.paths", k), "the path "+strconv.Quote(textOf(p, "path"))+
					" must begin with /, and be an expression of RE2 where use-regex or rewrite-target makes it one")
			}
			ing.requests = append(ing.requests, ingressPath{name, path})
		}
	}
}

// ingressPattern is the pattern of a path, as buildLocation of ingress-nginx makes a location of it.
func ingressPattern(path, pathType string, isExpression bool) (p pattern, ok bool) {
	path = cmp.Or(path, "/")
	bare := strings.TrimRight(path, "/")
	switch {
	case isExpression:
		return searched("^"+path, true)
	case pathType == "Exact":
		p = pattern{exactly, path}
	case pathType == "Prefix" && bare != "":
		p = pattern{orBelow, bare}
	default:
		p = stringPattern("", path, "*", false)
	}
	return p, strings.HasPrefix(path, "/")
}

// limitIngress makes the rules of one Ingress.
func (j *job) limitIngress(ing *ingress, all []*ingress) {
	for _, name := range []string{"limit-rate", "limit-rate-after"} {
		if ing.annotation(name) != "" {
			j.note(ing.annotationAt(name), "ignored: it limits bytes a second, and a policy limits requests")
		}
	}
	j.refuseUnknownLimits(ing)
	if ing.annotation("global-rate-limit") != "" {
		j.note(ing.annotationAt("global-rate-limit"), "ignored: write this limit as a rule with scope: cluster")
	}
	multiplier := j.number(ing, "limit-burst-multiplier", defaultMultiplier)
	if multiplier == 0 {
		j.fail(ing.annotationAt("limit-burst-multiplier"), "must be at least 1")
	}
	for _, per := range []struct{ annotation, per string }{{"limit-rps", "1s"}, {"limit-rpm", "1m"}} {
		n := j.number(ing, per.annotation, 0)
		burst := min(n*multiplier+1, 1<<32-1) // one more, as for nginx
		j.addIngressRules(ing, all, per.annotation, numbers{"token_bucket", n, per.per, burst})
	}
	n := j.number(ing, "limit-connections", 0)
	j.addIngressRules(ing, all, "limit-connections", numbers{algorithm: "concurrency", requests: n})
}

// knownLimits are the annotations about limits that ingress-nginx reads. It passes over others.
var knownLimits = []string{
	"limit-rps", "limit-rpm", "limit-connections", "limit-burst-multiplier", "limit-allowlist", "limit-whitelist",
	"limit-rate", "limit-rate-after",
}

// refuseUnknownLimits fails for annotations that look like limits and that ingress-nginx does not know.
func (j *job) refuseUnknownLimits(ing *ingress) {
	annotations := fieldOf(ing.node, "metadata", "annotations")
	if annotations == nil {
		return
	}
	for _, f := range annotations.Fields {
		name, ok := strings.CutPrefix(f.Name, annotationPrefix)
		if ok && strings.HasPrefix(name, "limit-") && !slices.Contains(knownLimits, name) {
			j.fail(ing.annotationAt(name), "is no annotation of ingress-nginx, which has "+strings.Join(knownLimits, ", "))
		}
	}
}

// addIngressRules makes the rules of one annotation: one, or one for each set of paths that hosts have.
func (j *job) addIngressRules(ing *ingress, all []*ingress, annotation string, n numbers) {
	at := ing.annotationAt(annotation)
	switch {
	case n.requests == 0:
		return
	case ing.isCanary:
		j.note(at, "ignored, as ingress-nginx does: the limits of a canary are those of the Ingress that it belongs to")
		return
	}
	allowed := j.allowedNetworks(ing)
	for _, s := range ing.selections(all) {
		s.exempt = slices.Concat(allowed, s.exempt)
		m := newMakerOf(j.reader, ing.name+"-"+strings.TrimPrefix(annotation, "limit-"), &quota{numbers: n, at: at}, s)
		m.rule.Key = []part{clientIP}
		m.rule.Response = &response{Status: 503} // the default of limit-req-status-code and limit-conn-status-code
		m.rule.identity = at
		j.draft.rules = append(j.draft.rules, m.finish())
	}
}

// allowedNetworks exempts the networks that the Ingress does not limit.
func (j *job) allowedNetworks(ing *ingress) []match {
	var list []pattern
	for _, name := range []string{"limit-allowlist", "limit-whitelist"} {
		for text := range strings.SplitSeq(ing.annotation(name), ",") {
			text = strings.TrimSpace(text)
			network, ok := networkOf(text)
			switch {
			case text == "":
			case !ok:
				j.fail(ing.annotationAt(name), "must have networks such as 10.0.0.0/8, not "+strconv.Quote(text))
			case network.IsSingleIP():
				list = append(list, pattern{exactly, network.Addr().String()})
			default:
				list = append(list, pattern{exactly, network.String()})
			}
		}
		if len(list) > 0 { // the second is another name of the first
			break
		}
	}
	if len(list) == 0 {
		return nil
	}
	return []match{clientIP.matching(list...)}
}

// selections are the requests of an Ingress: hosts with the same paths come together.
func (ing *ingress) selections(all []*ingress) (list []selection) {
	var hosts []string
	paths := map[string][]pattern{}
	for _, q := range ing.requests {
		if paths[q.host] == nil {
			hosts = append(hosts, q.host)
		}
		paths[q.host] = appendNew(paths[q.host], []pattern{q.path})
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
// path or a narrower host of another Ingress.
func (ing *ingress) selection(hosts []string, paths []pattern, all []*ingress) (s selection) {
	s.match = match{}
	if hosts[0] != "" {
		s.match[host.id()] = exact(hosts)
	}
	if !slices.Contains(paths, pattern{wildcard, "/*"}) {
		s.match[fullPath.id()] = spelledOut(paths)
	}
	for _, other := range all {
		if other == ing || other.isCanary {
			continue
		}
		for _, q := range other.requests {
			s.leaveOutPath(hosts, paths, q)
		}
	}
	return s
}

// leaveOutPath leaves the requests of another Ingress' path out if the path wins.
func (s *selection) leaveOutPath(hosts []string, paths []pattern, q ingressPath) {
	isNarrowerHost := func(h string) bool {
		isWithin := isValueWithin(kindHost, pattern{exactly, q.host}, pattern{exactly, h})
		return q.host != "" && q.host != h && (h == "" || isWithin)
	}
	wins := func(p pattern) bool { return q.path.isLonger(p) && !p.apart(q.path) }
	switch {
	case slices.ContainsFunc(hosts, isNarrowerHost):
		s.addExempt(host.matching(pattern{exactly, q.host}))
	case slices.Contains(hosts, q.host) && slices.ContainsFunc(paths, wins):
		m := fullPath.matching(spelledOut([]pattern{q.path})...)
		if len(hosts) > 1 {
			m[host.id()] = []pattern{{exactly, q.host}}
		}
		s.addExempt(m)
	}
}

// isLonger reports whether nginx takes the location of a pattern before that of another one: the longer
// one, or the exact one of two with one text. Locations with expressions are sorted by length too.
func (p pattern) isLonger(other pattern) bool {
	length := func(p pattern) int {
		if p.kind == expression {
			return len(p.text)
		}
		begin, _ := p.begin()
		return len(begin)
	}
	isSame := length(p) == length(other)
	return length(p) > length(other) || isSame && p.kind == exactly && other.kind != exactly
}

// spelledOut has two patterns for a path and what is below it: a list needs no expression for that.
func spelledOut(paths []pattern) (list []pattern) {
	for _, p := range paths {
		if p.kind == orBelow {
			list = append(list, pattern{exactly, p.text}, stringPattern("", p.text+"/", "*", false))
		} else {
			list = append(list, p)
		}
	}
	return list
}

// addExempt adds an exemption that is not there yet.
func (s *selection) addExempt(m match) {
	if !slices.ContainsFunc(s.exempt, m.equal) {
		s.exempt = append(s.exempt, m)
	}
}
