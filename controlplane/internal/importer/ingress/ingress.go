// Package ingress reads the annotations of Ingress objects by which ingress-nginx limits requests.
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
//
// The calls:
//
//	Read                       ingress.go
//	  readIngress: limitsOf    the limits of each Ingress                                   ingress.go
//	    pathsOf                its hosts and paths                                          path.go
//	  limitIngress: addRules   a rule of each limit and group of hosts                      ingress.go
//	    hostGroup.selection    its requests, without those of others                        path.go
//	  noteUnlistedPaths        those of its hosts that no Ingress has                       path.go
//	  noteWildcards            hosts that are wider here                                    path.go
//
// golden_test.go in the folder above imports testdata/imports/ingress-nginx.txtar.
package ingress

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// Read makes rules of the annotations of Ingress objects.
func Read(d *draft.Draft, files []*source.Document) {
	var objects []source.Resource
	for _, in := range files {
		objects = append(objects, in.OfKind("Ingress")...)
	}
	imp := &ingressImport{Draft: d}
	regexHosts := hostsWithExpressions(objects)
	for _, r := range objects {
		imp.all = append(imp.all, imp.readIngress(r, regexHosts))
	}
	for _, ing := range imp.all {
		imp.limitIngress(ing)
	}
	imp.noteUnlistedPaths()
	imp.noteWildcards()
}

// ingressImport is one import of Ingress objects.
type ingressImport struct {
	*draft.Draft
	all []*ingress // they take requests from each other
}

// annotationPrefix begins the names of ingress-nginx' annotations.
const annotationPrefix = "nginx.ingress.kubernetes.io/"

// defaultMultiplier is how many times the limit a burst is.
const defaultMultiplier = 5

// ingress is an Ingress object.
type ingress struct {
	source.Resource
	name     string // with the namespace
	isCanary bool
	paths    []hostPath // of its requests; none of a canary, which takes some of those of another Ingress
	limits   []limit    // also of a canary, which ingress-nginx ignores
}

// limit is one of its annotations that limit requests.
type limit struct {
	annotation string
	numbers    draft.Numbers
}

// readIngress reads what an Ingress says of itself. The paths of some hosts are expressions.
func (imp *ingressImport) readIngress(r source.Resource, regexHosts map[string]bool) *ingress {
	ing := &ingress{Resource: r, name: source.TextOf(r.Node, "metadata", "name")}
	if namespace := source.TextOf(r.Node, "metadata", "namespace"); namespace != "" {
		ing.name = namespace + "/" + ing.name
	}
	ing.isCanary = ing.annotation("canary") == "true"
	paths := imp.pathsOf(r, regexHosts)
	if !ing.isCanary {
		ing.paths = paths
	}
	ing.limits = imp.limitsOf(ing)
	return ing
}

// limitsOf reads the limits of an Ingress. One of 0 is none.
func (imp *ingressImport) limitsOf(ing *ingress) (list []limit) {
	imp.refuseUnknownLimits(ing)
	multiplier := imp.number(ing, "limit-burst-multiplier", defaultMultiplier)
	if multiplier == 0 {
		imp.Fail(ing.annotationAt("limit-burst-multiplier"), "must be at least 1")
	}
	for _, of := range []struct{ annotation, per string }{{"limit-rps", "1s"}, {"limit-rpm", "1m"}} {
		requests := imp.number(ing, of.annotation, 0)
		burst := min(requests*multiplier+1, 1<<32-1) // one more, as for nginx
		list = append(list, limit{of.annotation, draft.TokenBucket(requests, of.per, burst)})
	}
	connections := imp.number(ing, "limit-connections", 0)
	list = append(list, limit{"limit-connections", draft.Concurrency(connections)})
	return slices.DeleteFunc(list, func(l limit) bool { return l.numbers.Requests == 0 })
}

// isLimited reports whether it gets a rule.
func (ing *ingress) isLimited() bool { return !ing.isCanary && len(ing.limits) > 0 }

// annotation is an annotation of ingress-nginx; empty if it is absent.
func (ing *ingress) annotation(name string) string { return annotationOf(ing.Resource, name) }

func annotationOf(r source.Resource, name string) string {
	annotations := source.FieldOf(r.Node, "metadata", "annotations")
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
func (imp *ingressImport) number(ing *ingress, name string, unset uint64) uint64 {
	text := ing.annotation(name)
	if text == "" {
		return unset
	}
	number, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		imp.Fail(ing.annotationAt(name), "must be a whole number such as \"10\", not "+strconv.Quote(text))
	}
	return number
}

func (ing *ingress) annotationAt(name string) source.Place {
	return ing.At.In("metadata.annotations[" + strconv.Quote(annotationPrefix+name) + "]")
}

// limitIngress makes the rules of one Ingress.
func (imp *ingressImport) limitIngress(ing *ingress) {
	for _, name := range []string{"limit-rate", "limit-rate-after"} {
		if ing.annotation(name) != "" {
			imp.Note(ing.annotationAt(name), "ignored: it limits bytes a second, and a policy limits requests")
		}
	}
	if ing.annotation("global-rate-limit") != "" {
		imp.Note(ing.annotationAt("global-rate-limit"), "ignored: write this limit as a rule with scope: cluster")
	}
	if ing.isLimited() {
		imp.addRules(ing, imp.allowedNetworks(ing))
		return
	}
	for _, l := range ing.limits {
		imp.Note(ing.annotationAt(l.annotation), "ignored, as ingress-nginx does: the limits of a canary are those of the "+
			"Ingress that it belongs to")
	}
}

// knownLimits are the annotations about limits that ingress-nginx reads. It passes over others.
var knownLimits = []string{
	"limit-rps", "limit-rpm", "limit-connections", "limit-burst-multiplier", "limit-allowlist", "limit-whitelist",
	"limit-rate", "limit-rate-after",
}

// refuseUnknownLimits fails for annotations that look like limits and that ingress-nginx does not know.
func (imp *ingressImport) refuseUnknownLimits(ing *ingress) {
	annotations := source.FieldOf(ing.Node, "metadata", "annotations")
	if annotations == nil {
		return
	}
	for _, f := range annotations.Fields {
		name, ok := strings.CutPrefix(f.Name, annotationPrefix)
		if ok && strings.HasPrefix(name, "limit-") && !slices.Contains(knownLimits, name) {
			known := strings.Join(knownLimits, ", ")
			imp.Fail(ing.annotationAt(name), "is no annotation of ingress-nginx, which has "+known)
		}
	}
}

// addRules makes the rules of an Ingress: of each limit one for each group of hosts with the same paths. It does not
// limit the clients of the allowed networks.
func (imp *ingressImport) addRules(ing *ingress, allowed []request.Pattern) {
	for _, l := range ing.limits {
		at := ing.annotationAt(l.annotation)
		for _, g := range groupHosts(ing.paths) {
			var s request.Selection
			if allowed != nil {
				s.ExemptFitting(request.ClientIP.Value(), allowed...)
			}
			s.NarrowTo(g.selection(ing, imp.all))
			imp.Add(draft.NewRule(draft.Terms{
				Name: ing.name + "-" + strings.TrimPrefix(l.annotation, "limit-"), At: at,
				Limit: &draft.Limit{Numbers: l.numbers, At: at}, Requests: s, Key: []request.Part{request.ClientIP},
				// The default of limit-req-status-code and limit-conn-status-code:
				Enforcement: draft.Enforcement{Response: &draft.Response{Status: 503}},
			}))
		}
	}
}

// allowedNetworks are the networks that the Ingress does not limit.
func (imp *ingressImport) allowedNetworks(ing *ingress) (list []request.Pattern) {
	for _, name := range []string{"limit-allowlist", "limit-whitelist"} {
		for text := range strings.SplitSeq(ing.annotation(name), ",") {
			text = strings.TrimSpace(text)
			network, ok := request.NetworkPattern(text)
			switch {
			case text == "":
			case !ok:
				imp.Fail(ing.annotationAt(name), "must have networks such as 10.0.0.0/8, not "+strconv.Quote(text))
			default:
				list = append(list, network)
			}
		}
		if len(list) > 0 { // the second is another name of the first
			break
		}
	}
	return list
}
