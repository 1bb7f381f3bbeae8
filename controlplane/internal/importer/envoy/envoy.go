// Package envoy reads the limits of Envoy: those of envoyproxy/ratelimit, which Envoy's filter asks, and those of its
// local rate limit filter, also where an EnvoyFilter of Istio has them.
//
// Envoy says "descriptor" of two things. Here a configuration has levels, and a request has descriptors: see
// package descriptor, which makes the rules of both. This package reads the two, in this order:
//
//	ReadService: serviceImport.run                    service.go
//	  readConfigs, readDomain, levelsOf               the levels of the files (servicelevels.go)
//	  whatEnvoySends                                  its descriptors, and how its filter enforces the answers:
//	    guess                                         without --routes (guess.go, keys.go)
//	    siteOfRoutes                                  the listener (package envoyfile)
//	    filterOfDomain, enforcementOfDomain           its filter: readEnforcement (enforcement.go)
//	    descriptorsOfSite: virtualHosts               its routes (routes.go, match.go),
//	      routeDescriptors: descriptorsOf             and what they send (descriptors.go),
//	        readRateLimit: readAction                 by each of rate_limits (ratelimit.go, action.go)
//	  descriptor.Levels.Rules                         a rule of each limit that requests come to
//	  enforcement.apply                               for which share of requests, and the response
//
//	ReadLocal: localImport.run                        local.go
//	  chooseSite                                      the listener, or a filter that stands alone (localsite.go)
//	  addRules: addConfig                             for the filter, and for each route with its own (localextent.go)
//	    readEnforcement
//	    levelsOf, descriptorsFor                      as above: guess, routeDescriptors or descriptorsOf
//	    descriptor.Levels.Rules, defaultBucket
//	    enforcement.apply
//
// Each import is a type that embeds the reader, which has what is the same for both. decode.go decodes messages
// strictly: a field that Envoy's types lack is an error.
//
// golden_test.go in the folder above imports testdata/imports/*.txtar: those of ReadLocal are local-*, and most others
// are of ReadService. decides_test.go compares decisions with those of a model of Envoy's limiters.
package envoy

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what the files of an import do not.
type Options struct {
	Routes   *source.File      // Envoy's configuration with the rate_limits; nil = keys are guessed
	Listener string            // which of its listeners, where several have limits
	Keys     map[string]string // a descriptor's key to header:NAME, query:NAME, client_ip, path, method or host
}

// RefuseKeys is an error if there are keys, for an import that has no descriptors.
func (o Options) RefuseKeys() error {
	if keys := slices.Sorted(maps.Keys(o.Keys)); len(keys) > 0 {
		return errUnusedKey(keys[0])
	}
	return nil
}

// reader is what the imports have in common.
type reader struct {
	*draft.Findings // of the draft
	draft           *draft.Draft
	options         Options
	keys            *keyParts
	decoded         map[*policy.Node]proto.Message // by decode
	made            descriptorBound                // by descriptorsOf
}

// read runs an import. A problem of what a file says is left in the draft, so that the user reads all of them at once.
// An error is returned where the import cannot go on, as for a file that is no YAML, and for an option. If there are
// both, the error may follow from the problems, so they are returned.
func read(d *draft.Draft, o Options, run func(r *reader) error) error {
	keys, err := newKeyParts(o.Keys)
	if err != nil {
		return err
	}
	r := &reader{
		Findings: d.Findings, draft: d, options: o, keys: keys, decoded: map[*policy.Node]proto.Message{},
	}
	err = run(r)
	return cmp.Or(d.Err(), err, keys.unused())
}
