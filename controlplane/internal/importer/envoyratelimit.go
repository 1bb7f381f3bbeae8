package importer

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what the files do not.
type Options struct {
	Routes   *File             // Envoy's configuration with the rate_limits; nil = keys are guessed
	Listener string            // which of its listeners, where several have limits
	Keys     map[string]string // from a descriptor's key to a part: header:NAME, query:NAME, client_ip, path, method, host
}

// EnvoyRatelimit imports the configuration of the envoyproxy/ratelimit service:
// the files of one domain.
func EnvoyRatelimit(files []File, o Options) (Imported, error) {
	n := &notes{}
	n.add(place{}, "envoyproxy/ratelimit counts in one store for all proxies; here each Envoy counts for itself: N of them admit N times these limits.")
	keys, err := o.parts()
	if err != nil {
		return Imported{}, err
	}
	root, domain, errs := &tree{}, "", policyfile.Errors(nil)
	for _, f := range files {
		if err := readDomain(f, n, root, &domain); err != nil {
			var problems policyfile.Errors
			if !errors.As(err, &problems) {
				return Imported{}, err
			}
			errs = append(errs, problems...)
		}
	}
	d := &draft{from: "envoyproxy/ratelimit", domain: domain}
	var all []descriptor
	e := &enforcement{}
	if o.Routes == nil {
		for _, keysOf := range root.sequences() {
			all = append(all, guessDescriptors(root, keysOf, keys, n)...)
		}
	} else if all, err = routedDescriptors(d, e, o, n); err != nil {
		var problems policyfile.Errors
		if !errors.As(err, &problems) {
			return Imported{}, err
		}
		errs = append(errs, problems...)
	}
	if len(errs) > 0 {
		return Imported{}, errs
	}
	reached := map[*tree]bool{}
	for i := range all {
		made := all[i].rules(root.cells(all[i].entries), n)
		d.rules = append(d.rules, made...)
		root.reach(all[i].entries, reached, len(made) > 0)
	}
	root.unreached(reached, n)
	e.apply(d.rules, n)
	return finish(d, n)
}

func readDomain(f File, n *notes, root *tree, domain *string) error {
	in, node, err := open(f, n)
	if err != nil {
		return err
	}
	o := in.object(node, "")
	switch name := o.text("domain"); {
	case name == "":
		o.fail("domain", "the file needs a domain")
	case *domain != "" && *domain != name:
		o.fail("domain", "is "+name+", and that of the file before is "+*domain+": a policy has one domain, so import them one by one")
	case len(name) > policy.MaxNameBytes || strings.TrimSpace(printable(name)) != name:
		o.fail("domain", "must be at most "+strconv.Itoa(policy.MaxNameBytes)+" bytes, without control characters and spaces at its ends")
	default:
		*domain = name
	}
	root.readTree(o.children("descriptors"))
	return in.close()
}

// KeyError is returned for an entry of Options.Keys that names no part.
type KeyError struct{ Key, Part string }

func (e *KeyError) Error() string {
	return "the key " + e.Key + " cannot be " + strconv.Quote(e.Part) + ": it is header:NAME, query:NAME, client_ip, path, method or host"
}

// parts reads what keys stand for.
func (o Options) parts() (map[string]part, error) {
	made := map[string]part{}
	for key, text := range o.Keys {
		kind, name, named := strings.Cut(text, ":")
		switch {
		case kind == "header" && isHeaderName(strings.ToLower(name)):
			made[key] = headerPart(name)
		case kind == "query" && name != "":
			made[key] = part{kind: "query", name: name}
		case text == "client_ip":
			made[key] = clientIP
		case !named && slices.Contains([]string{"path", "method", "host"}, kind):
			made[key] = part{kind: kind}
		default:
			return nil, &KeyError{Key: key, Part: text}
		}
	}
	return made, nil
}

// guessDescriptors makes a descriptor of keys whose actions are not known: of
// what keys commonly stand for. Where a key's value is the proxy's own choice,
// there is a descriptor for each value.
func guessDescriptors(root *tree, keysOf []string, known map[string]part, n *notes) []descriptor {
	list := []descriptor{{}}
	for i, key := range keysOf {
		p, isKnown := known[key]
		note := ""
		if !isKnown {
			p, note, isKnown = guess(key)
		}
		if isKnown {
			if note != "" {
				n.add(place{}, note)
			}
			list = product(list, one(entry{key: key, part: &p}))
			continue
		}
		var ways []descriptor
		for _, value := range root.values(keysOf[:i+1]) {
			why := "It is for requests with which Envoy sends " + key + " = " + value + ". " + note
			if value == "" {
				why = "It is for requests with which Envoy sends " + key + ", one counter for each value. " + note
			}
			ways = append(ways, descriptor{entries: []entry{{key: key, value: value}}, unknown: []string{why}})
		}
		list = product(list, ways)
	}
	return list
}

// reach marks the limits that a descriptor leads to; with what it says about
// those that are unlimited.
func (t *tree) reach(entries []entry, reached map[*tree]bool, made bool) {
	if len(entries) == 0 {
		reached[t] = reached[t] || made || t.quota != nil && !t.quota.unlimited
		return
	}
	first, rest := entries[0], entries[1:]
	if first.part == nil {
		if c := t.child(first.key, first.value); c != nil {
			c.reach(rest, reached, made)
		}
		return
	}
	for _, c := range t.withKey(first.key).all {
		c.reach(rest, reached, made)
	}
}

// unreached notes limits that no descriptor leads to, and those that need no
// rule.
func (t *tree) unreached(reached map[*tree]bool, n *notes) {
	for _, c := range t.children {
		switch {
		case c.quota == nil || reached[c]:
		case c.quota.unlimited:
			n.add(c.place, c.path+" is unlimited: it needs no rule")
		default:
			n.add(c.place, c.path+": no rate_limits of the routes lead to this limit, so there is no rule for it")
		}
		c.unreached(reached, n)
	}
}

// routedDescriptors reads the descriptors that Envoy's routes make, and what
// its rate limit filter says.
func routedDescriptors(d *draft, e *enforcement, o Options, n *notes) ([]descriptor, error) {
	in, node, err := open(*o.Routes, n)
	if err != nil {
		return nil, err
	}
	var filter *object
	at, err := choose(in.sites(node), o.Listener, func(s *site) bool {
		f := s.filter("RateLimit", func(f *object) bool { return f.text("domain") == d.domain })
		return f != nil || s.filter("RateLimit", nil) == nil && s.limited()
	})
	if err != nil {
		return nil, err
	}
	if at == nil {
		return nil, policyfile.Errors{{File: in.file, Message: "there are no rate_limits, or no filter envoy.filters.http.ratelimit with the domain " + d.domain}}
	}
	stage := uint64(0)
	if filter = at.filter("RateLimit", func(f *object) bool { return f.text("domain") == d.domain }); filter != nil {
		filter.heed()
		stage = filter.integer("stage", 0)
		readServiceFilter(d, e, filter)
	}
	var all []descriptor
	if list := filter.children("rate_limits"); len(list) > 0 {
		for _, limit := range list {
			all = append(all, readRateLimit(limit, stage)...)
		}
	} else {
		for _, a := range at.applied("RateLimitPerRoute", nil) {
			if a.own.text("domain") != "" && a.own.text("domain") != d.domain {
				n.add(a.own.place, "this route asks for the domain "+a.own.text("domain")+": nothing was made of its rate_limits")
				continue
			}
			for _, made := range readRateLimit(in.object(a.limit, "rate_limits"), stage) {
				all = append(all, made.in(a.scope))
			}
		}
	}
	return all, in.close()
}

// readServiceFilter reads Envoy's filter for the rate limit service.
func readServiceFilter(d *draft, e *enforcement, f *object) {
	f.ignore("domain", "stage", "rate_limit_service", "timeout", "stat_prefix")
	if f.text("request_type") != "both" {
		f.without("rules are for requests from inside and outside; a match on a header such as x-envoy-internal tells them apart", "request_type")
	}
	f.without("there is no service that could fail; on_error of a rule says what happens when a call into Envoy fails", "failure_mode_deny", "failure_mode_deny_percent", "status_on_error")
	f.without("nothing here takes metadata of a limit along", "metadata_namespace")
	f.without("a denial has x-envoy-ratelimited", "disable_x_envoy_ratelimited_header")
	e.read(f)
	e.response(f, "rate_limited_status")
	d.headers = headersOf(f)
}
