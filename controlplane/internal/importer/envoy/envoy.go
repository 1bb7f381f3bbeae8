// Package envoy reads the limits of Envoy: those of envoyproxy/ratelimit, which Envoy's filter asks, and those of its
// local rate limit filter, also where an EnvoyFilter of Istio has them.
//
// Envoy says "descriptor" of two things. Here a configuration has levels, and a request has descriptors: see
// package descriptor, which makes the rules of both. What Envoy calls rate_limits limits nothing: they say which
// descriptors a filter sends. This package reads levels and descriptors in this order:
//
//	ReadService: readConfigs, readDomain, levelsOf    the levels of the files (service.go)
//	  whatEnvoySends                                  its descriptors, and how its filter enforces (domain.go):
//	    guess                                         without --routes (guess.go)
//	    siteOfRoutes                                  else the listener, of package envoyfile
//	    filtersOf, filterOfDomain                     its filter (filter.go)
//	    readDomainFilter: readEnforcement             how that enforces the answers (enforcement.go)
//	    virtualHosts                                  its routes (routes.go), the requests that they match (matcher.go)
//	      exemptOthers, exemptEarlierRoutes           and those that others take (exempt.go)
//	    senderFor: configFor                          what its configuration for each of them says
//	    sendingsOf: routeSends                        by which rate_limits it sends, for which requests (ratelimits.go)
//	    descriptorsOf: readRateLimit, readWays        what it sends by them (descriptors.go)
//	  descriptor.Levels.Rules                         a rule of each limit that requests come to
//
//	ReadLocal: chooseSite                             the listener, or a filter that stands alone (local.go)
//	  filtersOf, virtualHosts                         its filters and routes, as above
//	  localConfigs: configFor                         those of the filters, and of routes for them (localconfig.go)
//	  addConfig                                       the rules of each of these:
//	    extents                                       where it holds: for which requests (exempt.go)
//	    readLimits: readLevels, readBucket            its limits, and how the filter enforces them
//	    descriptorsIn                                 what it sends: guess, or sendingsOf and descriptorsOf, as above
//	    descriptor.Levels.Rules, bucketRule
//
// The reader has what is the same for both. Messages are decoded strictly (decode.go): a field that Envoy's types lack
// is an error.
//
// A problem goes one of two ways. Findings.Fail takes what a file says wrong: the import goes on, so that the user
// reads all of these at once. A function returns an error if the import cannot go on. See read, where both meet.
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
	guesser         *guesser

	decoded     map[*policy.Node]proto.Message // by decode. A note about an object names the first place that has it
	descriptors int                            // how many descriptorsOf has made: see maxDescriptors
}

// read runs an import. The draft has the problems of what a file says. Run returns an error if the import cannot go on,
// as for a file that is no YAML, and for an option. If there are both, the error may follow from the problems, so read
// returns these.
func read(d *draft.Draft, o Options, run func(r *reader) error) error {
	g, err := newGuesser(d.Findings, o.Keys)
	if err != nil {
		return err
	}
	err = run(&reader{
		Findings: d.Findings, draft: d, options: o, guesser: g, decoded: map[*policy.Node]proto.Message{},
	})
	if err := cmp.Or(d.Err(), err); err != nil {
		return err
	}
	g.noteParts()
	if d.IsEmpty() { // Draft.Finish says that it is
		return nil
	}
	return g.refuseUnused()
}
