// Package importer makes a sluice policy of the configuration of another rate limiter:
// envoyproxy/ratelimit, Envoy's local rate limit filter, a BackendTrafficPolicy of Envoy Gateway,
// limit_req and limit_conn of nginx, or the annotations of ingress-nginx.
//
// Its invariant: what a file says about limits ends in the policy or in a note, and what it does not say,
// such as which requests carry a descriptor, never becomes a rule that denies: such a rule is off. A field
// that Envoy's types lack is an error. The filter must never import it.
//
// This package opens the files, chooses their reader, and has the policy written. The rest is in folders:
//
//	files                      reader                      draft                    result
//
//	configurations of Envoy    envoy ──► descriptor ──┐
//	                                                  ├──►  Draft, its Rules   ──►  YAML, and notes
//	configurations of nginx    nginx ─────────────────┘
//
//	source   opens a file, finds fields in it, and says where they are     (used by the readers)
//	request  says which requests a rule is for: match, exempt, key         (used by all of them)
//
// Read one import at a time:
//
//   - of Envoy: envoy/envoy.go lists its calls. service.go, local.go and gateway.go are the three imports.
//     Then descriptor/descriptor.go, where levels and descriptors become rules.
//   - of nginx: nginx/nginx.go lists its calls. ingress.go is the import of ingress-nginx.
//   - of both: request/selection.go, then draft/draft.go.
//
// A small import from end to end, which ExampleEnvoyRatelimit runs. This is a file of envoyproxy/ratelimit:
//
//	domain: shop
//	descriptors:
//	- key: remote_address
//	  rate_limit: {unit: minute, requests_per_unit: 5}
//
//	EnvoyRatelimit        importer.go     source.Open parses it
//	  envoy.ReadService   service.go      a level: remote_address may have any value, 5/minute
//	    guess             guess.go        a descriptor: its one entry has the key remote_address, which
//	                                      stands for the client's address
//	    Levels.Rules      level.go        where does the search for the descriptor end? In
//	      serviceLeaves   search.go       a leaf: the client's address may be anything, 5/minute
//	      rules           descriptor.go   a rule: any value of a part needs that part in the key
//	  Draft.Finish        finish.go       the policy is written and validated:
//
//	version: 1
//	domain: shop
//	rules:
//	  - name: remote_address
//	    key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]
//	    limits: [5/minute]
//
// golden_test.go imports the files of testdata/imports and compares what comes of them. decides_test.go compares
// decisions with those of a model of Envoy's limiters, and nginx_test.go with those of a real nginx.
package importer

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoy"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/nginx"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// What users of this package need of those in its folders.
type (
	// File is a configuration to import; the name is for messages.
	File = source.File
	// Imported is a policy as YAML with the notes as comments, and the notes.
	Imported = draft.Imported
	// UsageError is about an option, with a hint that says what would be right.
	UsageError = source.UsageError
)

// ErrNothing is returned for a configuration without limits.
var ErrNothing = draft.ErrNothing

// Options say what the files of an import do not. There is at least one file: messages about the whole policy name the
// first. LocalRatelimit reads that alone.
type Options struct {
	Routes   *File             // Envoy's configuration with the rate_limits; nil = keys are guessed
	Listener string            // which of its listeners, where several have limits
	Keys     map[string]string // a descriptor's key to header:NAME, query:NAME, client_ip, path, method or host
	Cluster  bool              // rules get scope: cluster

	// Include finds the files that a file of nginx includes; nil = it includes none.
	Include func(file, pattern string) ([]File, error)
}

// EnvoyRatelimit imports the configuration of the envoyproxy/ratelimit service: the files of one domain.
func EnvoyRatelimit(files []File, o Options) (Imported, error) {
	return importYAML("envoyproxy/ratelimit", files, o, envoy.ReadService)
}

// LocalRatelimit imports Envoy's local rate limit filter, from a file with the configuration of the filter
// or of a whole Envoy.
func LocalRatelimit(one []File, o Options) (Imported, error) {
	return importYAML("Envoy's local rate limit filter", one, o, envoy.ReadLocal)
}

// IngressNginx imports the annotations of Ingress objects by which ingress-nginx limits requests.
func IngressNginx(files []File, o Options) (Imported, error) {
	read := func(to *draft.Draft, files []*source.Document, _ envoy.Options) error {
		nginx.ReadIngresses(to, files)
		return nil
	}
	return importYAML("ingress-nginx", files, o, read)
}

// Nginx imports limit_req and limit_conn of nginx' configurations.
func Nginx(files []File, o Options) (Imported, error) {
	d := draft.New("nginx", files[0].Name, o.Cluster)
	if err := nginx.Read(d, files, o.Include); err != nil {
		return Imported{}, err
	}
	return d.Finish()
}

// readFunc makes the rules of a draft of files. A problem of what a file says is left in the draft, so that the
// user reads all of them at once: Draft.Finish returns them. An error is returned where the import cannot go on, as
// for a file that is no YAML, and for an option. If there are both, the error may follow from the problems, and they
// are returned in its place.
type readFunc func(to *draft.Draft, files []*source.Document, o envoy.Options) error

// importYAML opens the files, has their rules made, and writes the policy. If a file has a BackendTrafficPolicy
// of Envoy Gateway, its rules are made of that, whichever import was asked for.
func importYAML(from string, files []File, o Options, read readFunc) (Imported, error) {
	keys, err := o.parts()
	if err != nil {
		return Imported{}, err
	}
	var opened []*source.Document
	for _, f := range files {
		in, err := source.Open(f)
		if err != nil {
			return Imported{}, err
		}
		opened = append(opened, in)
	}
	if envoy.HasTrafficPolicy(opened) {
		from = envoy.TrafficPolicy
		read = envoy.ReadTrafficPolicies
	}
	d := draft.New(from, files[0].Name, o.Cluster)
	err = read(d, opened, envoy.Options{Routes: o.Routes, Listener: o.Listener, Keys: keys})
	if err := cmp.Or(d.Err(), err); err != nil { // the problems first: see readFunc
		return Imported{}, err
	}
	return d.Finish()
}

// parts reads which parts of a request Keys name.
func (o Options) parts() (map[string]request.Part, error) {
	parts := map[string]request.Part{}
	for key, text := range o.Keys {
		kind, name, _ := strings.Cut(text, ":")
		switch {
		case kind == "header" && request.IsHeaderName(strings.ToLower(name)):
			parts[key] = request.HeaderPart(name)
		case kind == "query" && name != "":
			parts[key] = request.Part{Kind: request.KindQuery, Name: name}
		case text == "client_ip":
			parts[key] = request.ClientIP
		case text == "path": // without the query, while Envoy's actions send :path with it: see guess.go
			parts[key] = request.FullPath
		case text == "method":
			parts[key] = request.Method
		case text == "host":
			parts[key] = request.Host
		default:
			return nil, &UsageError{
				Message: "the key " + key + " cannot be " + strconv.Quote(text) + ": it is header:NAME, query:NAME, client_ip, " +
					"path, method or host",
				Hint: "write one such as --key user=header:x-user-id",
			}
		}
	}
	return parts, nil
}
