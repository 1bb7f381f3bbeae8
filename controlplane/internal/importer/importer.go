// Package importer makes a sluice policy of the configuration of another rate
// limiter: envoyproxy/ratelimit, Envoy's local rate limit filter, a
// BackendTrafficPolicy of Envoy Gateway, limit_req and limit_conn of nginx, or the
// annotations of ingress-nginx.
//
// Its invariant: what a file says about limits ends in the policy or in a note,
// and what it does not say, such as which requests carry a descriptor, never
// becomes a rule that denies: such a rule is off. A field that Envoy's types
// lack is an error. The filter must never import it.
//
// An import has two sides, and Envoy says "descriptor" on both. Here a configuration has levels, and
// a request has descriptors:
//
//   - A level has pairs of a key and the values that it may have, and perhaps a limit (leaf.go).
//   - A descriptor has entries of a key and the part of the request that is its value. Envoy's routes
//     and their actions send it (site.go, routes.go, action.go; guess.go without routes).
//   - A selection says for which requests something holds: a virtual host, a route, a descriptor. It is
//     a match and what is exempt from it, or why a policy cannot say it (selection.go).
//   - A leaf is where the limiter's search through the levels ends for some requests of a descriptor.
//     It has values: each a part of the request and the pattern that it fits (part.go, pattern.go).
//   - A rule comes of each leaf with a limit (descriptor.go). draft.go writes it.
//
// One example from end to end. This configuration of envoyproxy/ratelimit has two levels: path = /login
// without a limit, and below it path = /login with user = anything, which has one:
//
//	descriptors:
//	- key: path
//	  value: /login
//	  descriptors:
//	  - key: user
//	    rate_limit: {unit: minute, requests_per_unit: 5}
//
// A route's actions send a descriptor of two entries: path, whose part is the path of the request, and
// user, whose part is the header x-user. The search ends in two leaves: one with the values /login
// for the path and anything for the header, which has the limit, and one for all other requests,
// which has none. The first becomes the rule. One text needs no counter of its own, so it goes to the
// match, and the header goes to the key:
//
//	rules:
//	- name: path_/login.user
//	  match: {paths: [/login]}
//	  key: [{header: x-user}]
//	  limits: [5/minute]
//
// An import goes from top to bottom here, with a file in brackets where it changes:
//
//	EnvoyRatelimit: run, then job.service             (importer.go, service.go)
//	  serviceConfigs, readDomain, levelsOfService     the levels of the files
//	  sent                                            what Envoy sends, and how its filter enforces the answers
//	    guess                                         without --routes (guess.go)
//	    siteOfRoutes: openEnvoy, findSites, choose    the listener (envoyfile.go, site.go)
//	    filterOfDomain, enforcementOfDomain           its filter (enforcement.go)
//	    sentBySite: virtualHosts, routeDescriptors    its routes (routes.go, selection.go),
//	      descriptorsOf: readRateLimit                and what their actions send (action.go)
//	  for each descriptor:
//	    serviceLeaves                                 where the search through the levels ends (leaf.go)
//	    descriptor.rules                              a rule of each leaf with a limit (descriptor.go)
//	  enforcement.apply                               for which share of requests, and the response
//	  job.finish: nameRules, asYAML                   the policy is written (draft.go) and validated (finish.go)
//
//	LocalRatelimit: run, then job.local               (local.go)
//	  localSite: findSites, choose                    the listener, or a filter that stands alone
//	  addRules: addConfig                             for the filter, and for each route with its own:
//	    readEnforcement
//	    descriptorRules: readLevels, descriptors      as above: guess, routeDescriptors or descriptorsOf
//	      localLeaves, descriptor.rules               for each descriptor
//	    defaultBucket, enforcement.apply
//	  job.finish
//
//	A BackendTrafficPolicy: run, then trafficPolicies (gateway.go)
//	  gatewayDescriptor, gatewayRule                  a rule of Envoy Gateway is a descriptor with one leaf
//	  job.finish
//
//	Nginx: importHTTP                                 (nginx.go)
//	  readZone, readVariable                          the zones of limits, and what map and geo make
//	  httpScope: readServers, readLocations           the scopes (nginxscope.go, nginxserver.go,
//	                                                  nginxlocation.go)
//	  rulesOf                                         a rule of each scope, limit and form of its key (nginxkey.go)
//	  job.finish
//
//	IngressNginx: run, then job.ingresses             a rule of each Ingress and annotation (ingress.go)
//	  job.finish
//
// documents.go opens files and finds fields in their trees; envoyfile.go makes the configuration of Envoy
// of parts of one and of EnvoyFilters; reader.go decodes messages, and collects notes and problems.
//
// nginx has no descriptors. Its limits hold in scopes, which are selections too: http, servers and
// locations. The forms of a limit's key are parts of the request.
package importer

import (
	"cmp"
	"errors"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

// File is a configuration to import; the name is for messages.
type File struct {
	Name string
	Text []byte
}

// Options say what the files do not.
type Options struct {
	Routes   *File             // Envoy's configuration with the rate_limits; nil = keys are guessed
	Listener string            // which of its listeners, where several have limits
	Keys     map[string]string // a descriptor's key to header:NAME, query:NAME, client_ip, path, method or host
	Cluster  bool              // rules get scope: cluster

	// Include finds the files that a file of nginx includes; nil = it includes none.
	Include func(file, pattern string) ([]File, error)
}

// Imported is a policy as YAML with the notes as comments, and the notes.
type Imported struct {
	Policy []byte
	Notes  []policyfile.Problem
}

// ErrNothing is returned for a configuration without limits.
var ErrNothing = errors.New("there is no rate limit in it")

// UsageError is about an option, with a hint that says what would be right.
type UsageError struct{ Message, Hint string }

func (e *UsageError) Error() string { return e.Message }

// job is one import. Its reader is embedded, because every step has something to say about the files:
// job.note and job.fail collect it.
type job struct {
	*reader
	options Options
	files   []*source
	keys    *keyParts
	draft   draft // what the files come to
}

// run opens the files, has their rules made, and writes the policy. Rules are made of BackendTrafficPolicies
// if there are any, or else by makeRules.
func run(from string, files []File, o Options, makeRules func(j *job) error) (Imported, error) {
	j := &job{reader: newReader(o.Cluster), options: o, draft: draft{from: from}}
	keys, err := o.parts()
	if err != nil {
		return Imported{}, err
	}
	j.keys = keys
	for _, f := range files {
		in, err := j.open(f)
		if err != nil {
			return Imported{}, err
		}
		j.files = append(j.files, in)
	}
	if j.hasTrafficPolicies() {
		err = j.trafficPolicies()
	} else {
		err = makeRules(j)
	}
	if err != nil {
		return Imported{}, cmp.Or(j.err(), err)
	}
	return j.finish()
}
