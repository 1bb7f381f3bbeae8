package importer

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what the files do not.
type Options struct {
	Routes   *File             // Envoy's configuration with the rate_limits; nil = keys are guessed
	Listener string            // which of its listeners, where several have limits
	Keys     map[string]string // a descriptor's key to header:NAME, query:NAME, client_ip, path, method or host
	Cluster  bool              // rules get scope: cluster
}

const eachEnvoy = "envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of them " +
	"admit N times these limits. --scope cluster makes rules that count over all."

// EnvoyRatelimit imports the configuration of the envoyproxy/ratelimit service:
// the files of one domain.
func EnvoyRatelimit(files []File, o Options) (Imported, error) {
	return run("envoyproxy/ratelimit", files, o, (*job).service)
}

func (j *job) service() (err error) {
	root, e := &tree{}, &enforcement{}
	for _, in := range j.files {
		if in.refuse(true); j.notes.err() == nil {
			for _, document := range resources(in.root) {
				in.readDomain(document, root, &j.domain)
			}
		}
	}
	j.notes.addUnlessCluster(place{}, eachEnvoy)
	root.replace()
	var all []descriptor
	if j.Routes == nil {
		all = guessBelow([]*tree{root}, descriptor{}, j.keys, j.notes)
	} else if all, err = j.routed(e); err != nil {
		return err
	}
	for i := range all {
		j.rules = append(j.rules, all[i].rules(root.cells(all[i].entries), j.notes)...)
	}
	root.unreached(j.notes)
	e.apply(j.rules, j.notes)
	return nil
}

// readDomain adds the descriptors of a file to those of its domain.
func (in *source) readDomain(n *policy.Node, root *tree, domain *string) {
	o := &theirFile{}
	in.structure(n, "", reflect.ValueOf(o).Elem())
	switch name := o.Domain; {
	case name == "":
		in.failField(o, "domain", "the file needs a domain")
	case *domain != "" && *domain != name:
		in.failField(o, "domain", "is "+name+", and that of the file before is "+*domain+": a policy has one domain, so "+
			"import them one by one")
	case len(name) > policy.MaxNameBytes || strings.TrimSpace(name) != name || !printable.Is(name):
		in.failField(o, "domain", "must be at most "+strconv.Itoa(policy.MaxNameBytes)+" bytes, without control "+
			"characters and spaces at its ends")
	default:
		*domain = name
	}
	root.addAll(in, o.Descriptors)
}

// KeyError is returned for an entry of Options.Keys that is no part of a request.
type KeyError struct{ Key, Part string }

func (e *KeyError) Error() string {
	return "the key " + e.Key + " cannot be " + strconv.Quote(e.Part) + ": it is header:NAME, query:NAME, client_ip, " +
		"path, method or host"
}

// keyParts are the parts of Keys, and which of them a descriptor has.
type keyParts struct {
	parts map[string]part
	used  map[string]bool
}

// parts reads the parts of Keys.
func (o Options) parts() (*keyParts, error) {
	made := &keyParts{map[string]part{}, map[string]bool{}}
	for key, text := range o.Keys {
		kind, name, named := strings.Cut(text, ":")
		switch {
		case kind == "header" && isHeaderName(strings.ToLower(name)):
			made.parts[key] = headerPart(name)
		case kind == "query" && name != "":
			made.parts[key] = part{kind: "query", name: name}
		case text == "client_ip":
			made.parts[key] = clientIP
		case !named && slices.Contains([]string{"path", "method", "host"}, kind):
			made.parts[key] = part{kind: kind}
		default:
			return nil, &KeyError{Key: key, Part: text}
		}
	}
	return made, nil
}

// unused is an error where a key is one of no descriptor.
func (k *keyParts) unused() error {
	for _, key := range slices.Sorted(maps.Keys(k.parts)) {
		if !k.used[key] {
			return fmt.Errorf("no descriptor has the key %s of --key", key)
		}
	}
	return nil
}

// limited reports whether there is a limit on a level or below.
func (t *tree) limited() bool {
	return t.quota.limits() || slices.ContainsFunc(t.children, (*tree).limited)
}

func (q *quota) limits() bool { return q != nil && !q.unlimited }

// unreached notes limits that no descriptor leads to, and those that need no
// rule.
func (t *tree) unreached(n *notes) {
	for _, c := range t.all() {
		switch {
		case c.quota == nil || c.reached:
		case c.quota.unlimited:
			n.add(c.place, c.path+" is unlimited: it needs no rule")
		default:
			n.add(c.place, c.path+": no rate_limits of the routes lead to this limit, so there is no rule for it")
		}
	}
}

// routed reads the descriptors that Envoy's routes make, and what its rate limit filter says.
func (j *job) routed(e *enforcement) (all []descriptor, err error) {
	in, err := openEnvoy(*j.Routes, j.notes)
	if err != nil {
		return nil, err
	}
	ofDomain := func(c *policy.Node) bool { return textOf(c, "domain") == j.domain }
	isFilter := isConfig[*ratelimitv3.RateLimit]
	list := sites(in)
	at, err := choose(list, j.Listener, func(s *site) bool {
		return slices.ContainsFunc(s.filters, func(c filterConfig) bool { return isFilter(c) && ofDomain(c.node) })
	})
	if at == nil && err == nil {
		at, err = choose(list, j.Listener, func(s *site) bool { return !slices.ContainsFunc(s.filters, isFilter) && s.limited() })
	}
	if err != nil {
		return nil, err
	}
	if at == nil {
		return nil, policyfile.Errors{{File: in.file, Message: "there are no rate_limits, or no filter " +
			"envoy.filters.http.ratelimit with the domain " + j.domain}}
	}
	filter := config[*ratelimitv3.RateLimit](in, at.filters, ofDomain)
	if filter != nil {
		if filter.GetRequestType() != "both" && filter.GetRequestType() != "" {
			in.note(filter, "request_type", "request_type: rules are for requests from inside and outside. A match on a "+
				"header such as x-envoy-internal separates them")
		}
		*e = *in.readEnforcement(filter, 100, filter.GetRateLimitedStatus())
		j.headers = headersField(filter.GetEnableXRatelimitHeaders())
	}
	for _, limit := range filter.GetRateLimits() {
		all = append(all, in.readRateLimit(limit, filter.GetStage())...)
	}
	if len(filter.GetRateLimits()) > 0 {
		return all, nil
	}
	ownOf := func(r *hostRoute) *ratelimitv3.RateLimitPerRoute {
		return config[*ratelimitv3.RateLimitPerRoute](in, r.own, nil)
	}
	every := func(*hostRoute) bool { return true }
	for _, a := range applyLimits(in.hosts(at), every, func(r *hostRoute) ([]*routev3.RateLimit, int32) {
		return ownOf(r).GetRateLimits(), int32(ownOf(r).GetVhRateLimits())
	}) {
		if a.route != nil {
			if own := ownOf(a.route); own.GetDomain() != "" && own.GetDomain() != j.domain {
				in.note(own, "", "this route asks for the domain "+own.GetDomain()+": the import made nothing of its rate_limits")
				continue
			}
		}
		for _, made := range in.readRateLimit(a.limit, filter.GetStage()) {
			all = append(all, made.in(a.scope))
		}
	}
	return all, nil
}
