// Package envoy reads the limits of Envoy and of what is configured for it: envoyproxy/ratelimit, the local
// rate limit filter, EnvoyFilters of Istio, and BackendTrafficPolicies of Envoy Gateway.
//
// Envoy says "descriptor" of two things. Here a configuration has levels, and a request has descriptors: see
// package descriptor, which makes the rules of both. This package reads the two, in this order:
//
//	ReadService                                       service.go
//	  serviceConfigs, readDomain, levelsOfService     the levels of the files
//	  addRules: sent                                  what Envoy sends, and how its filter enforces the answers
//	    guess                                         without --routes (guess.go)
//	    siteOfRoutes: openEnvoy, findSites, choose    the listener (file.go, site.go)
//	    filterOfDomain, enforcementOfDomain           its filter (enforcement.go)
//	    sentBySite: virtualHosts, routeDescriptors    its routes (routes.go, match.go),
//	      descriptorsOf: readRateLimit                and what their actions send (action.go)
//	  for each descriptor:
//	    descriptor.ServiceLeaves, Rules               a rule of each limit that requests come to
//	  enforcement.apply                               for which share of requests, and the response
//
//	ReadLocal                                         local.go
//	  localSite: findSites, choose                    the listener, or a filter that stands alone
//	  addRules: addConfig                             for the filter, and for each route with its own:
//	    readEnforcement
//	    descriptorRules: readLevels, sentFor          as above: guess, routeDescriptors or descriptorsOf
//	      descriptor.LocalLeaves, Rules               for each descriptor
//	    defaultBucket, enforcement.apply
//
//	ReadTrafficPolicies: trafficPolicy                gateway.go
//	  gatewayList.makeRules: readGatewayRule          a rule of Envoy Gateway is a descriptor with one leaf
//
// file.go makes the configuration of an Envoy of parts of one and of EnvoyFilters. refuse.go says what is wrong with
// other files. decode.go decodes messages strictly: a field that Envoy's types lack is an error.
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

// reader makes a draft of configurations of Envoy. It embeds the draft, because every step has something to
// say about the files: Note and Fail collect it.
type reader struct {
	*draft.Draft
	options Options
	files   []*source.Document
	keys    *keyParts
	decoded map[*policy.Node]proto.Message // by decode

	// For descriptorsOf, which bounds them.
	descriptorsMade int  // of the rate_limits of routes so far
	tooMany         bool // it is said, and no more are made
}

func newReader(d *draft.Draft, files []*source.Document, o Options) *reader {
	return &reader{
		Draft: d, options: o, files: files, keys: newKeyParts(o.Keys), decoded: map[*policy.Node]proto.Message{},
	}
}
