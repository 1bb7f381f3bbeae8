// Package envoy reads the limits of Envoy and of what is configured for it: envoyproxy/ratelimit, the local
// rate limit filter, EnvoyFilters of Istio, and BackendTrafficPolicies of Envoy Gateway.
//
// Envoy says "descriptor" of two things. Here a configuration has levels, and a request has descriptors: see
// package descriptor, which makes the rules of both. This package reads the two, in this order:
//
//	ReadService: serviceImport.run                    service.go
//	  readConfigs, readDomain, levelsOf               the levels of the files
//	  sent                                            what Envoy sends, and how its filter enforces the answers:
//	    guess                                         without --routes (guess.go)
//	    siteOfRoutes: openEnvoy, findSites, choose    the listener (file.go, site.go, filterconfig.go)
//	    filterOfDomain, enforcementOfDomain           its filter (enforcement.go)
//	    sentBySite: virtualHosts, routeDescriptors    its routes (routes.go, match.go),
//	      descriptorsOf: readRateLimit                and what their actions send (action.go)
//	  descriptor.Levels.Rules                         a rule of each limit that requests come to
//	  enforcement.apply                               for which share of requests, and the response
//
//	ReadLocal: localImport.run                        local.go
//	  asEnvoy                                         the file as a configuration of Envoy (file.go)
//	  chooseSite: openEnvoy, findSites, choose        the listener, or a filter that stands alone (localsite.go)
//	  addRules: addConfig                             for the filter, and for each route with its own (extent.go)
//	    readEnforcement
//	    levelsOf, sentFor                             as above: guess, routeDescriptors or descriptorsOf
//	    descriptor.Levels.Rules, defaultBucket
//	    enforcement.apply
//
//	ReadTrafficPolicies: gatewayImport.run            gateway.go, gatewaydecode.go
//	  addRules: gatewayList.makeRules                 a rule of Envoy Gateway is a descriptor with one leaf
//
// Each import is a type that embeds the reader. The reader has what is the same for two of them, and decode.go, which
// decodes messages strictly: a field that Envoy's types lack is an error. file.go makes the configuration of an Envoy
// of parts of one and of EnvoyFilters. refuse.go says what is wrong with other files.
package envoy

import (
	"google.golang.org/protobuf/proto"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what the files of an import do not.
type Options struct {
	Routes   *source.File            // Envoy's configuration with the rate_limits; nil = keys are guessed
	Listener string                  // which of its listeners, where several have limits
	Keys     map[string]request.Part // the parts that keys of descriptors stand for
}

// reader is what the imports have in common. It embeds the draft, because every step has something to say about the
// files: Note and Fail collect it.
type reader struct {
	*draft.Draft
	options Options
	keys    *keyParts
	decoded map[*policy.Node]proto.Message // by decode

	// For descriptorsOf, which bounds them.
	descriptorsMade int  // of the rate_limits of routes so far
	tooMany         bool // it is said, and no more are made
}

func newReader(d *draft.Draft, o Options) *reader {
	return &reader{Draft: d, options: o, keys: newKeyParts(o.Keys), decoded: map[*policy.Node]proto.Message{}}
}

// eachEnvoy is for limits that envoyproxy/ratelimit counts: its own, and the global ones of Envoy Gateway.
const eachEnvoy = "envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of " +
	"them admit N times these limits. --scope cluster makes rules that count over all."

// lengths are the units of time with the lengths that token buckets have for them.
var lengths = map[string]string{
	"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d", "year": "365d",
}

// noteCalendar says of units that have fixed lengths there how they differ.
func (r *reader) noteCalendar(unit string) {
	if unit == "month" || unit == "year" {
		r.NoteImport("envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of 365. " +
			"Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}
