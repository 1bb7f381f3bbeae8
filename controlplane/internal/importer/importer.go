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
//	files                          readers
//
//	envoyproxy/ratelimit, Envoy    envoy ------+--> descriptor --+
//	BackendTrafficPolicy           gateway ----+                 +-->  Draft, its Rules  -->  YAML, and notes
//	nginx                          nginx ------------------------+
//	Ingress                        ingress ----------------------+
//
//	source     opens a file, finds fields in it, and says where they are     (used by the readers; package nginx
//	           parses its files itself, as they are no YAML and include others)
//	envoyfile  finds the listeners in a configuration of Envoy               (used by envoy)
//	nginxkey   says what the key of a limit is for which requests            (used by nginx)
//	request    says which requests a rule is for: match, exempt, key         (used by all of them)
//	draft      has the rules while they are made, and what is to be said     (used by all of them)
//
// Read one import at a time: the comment of its reader's package lists its calls. Then descriptor/descriptor.go if it
// is of Envoy, request/selection.go and draft/draft.go: how an import ends is the same for all. A new import is a
// reader beside these, a function here, its command in cli/import.go and its files in testdata/imports.
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
//	    Levels.Rules      descriptor.go   where does the search for the descriptor end? In
//	      serviceLeaves   search.go       a leaf: the client's address may be anything, 5/minute
//	      rulesOfLeaves   plan.go         a rule: any value of a part needs that part in the key
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
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoy"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/gateway"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/ingress"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/nginx"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What users of this package need of those in its folders.
type (
	// File is a configuration to import; the name is for messages.
	File = source.File
	// EnvoyOptions say what the files of the imports of Envoy do not.
	EnvoyOptions = envoy.Options
	// NginxInclude finds the files that a file of nginx includes; nil = it includes none.
	NginxInclude = nginx.Include
	// Imported is a policy as YAML with the notes as comments, and the notes.
	Imported = draft.Imported
	// UsageError is about an option, with a hint that says what would be right.
	UsageError = source.UsageError
)

// The errors of an import that are of no place in a file.
var (
	ErrNothing = draft.ErrNothing // the configuration has no limits
	ErrFault   = draft.ErrFault   // the policy that it made is not valid
)

// EnvoyRatelimit imports the configuration of the envoyproxy/ratelimit service: the files of one domain. If one of them
// has a BackendTrafficPolicy of Envoy Gateway, it imports those instead, and so does LocalRatelimit.
//
// As in every import there is at least one file, messages about the whole policy name the first, and the rules get the
// scope.
func EnvoyRatelimit(files []File, scope policy.Scope, o EnvoyOptions) (Imported, error) {
	return importEnvoy("envoyproxy/ratelimit", files, scope, o, envoy.ReadService)
}

// LocalRatelimit imports Envoy's local rate limit filter, from a file with the configuration of the filter
// or of a whole Envoy.
func LocalRatelimit(file File, scope policy.Scope, o EnvoyOptions) (Imported, error) {
	read := func(to *draft.Draft, files []*source.Document, o EnvoyOptions) error {
		return envoy.ReadLocal(to, files[0], o)
	}
	return importEnvoy("Envoy's local rate limit filter", []File{file}, scope, o, read)
}

// Nginx imports limit_req and limit_conn of nginx' configurations.
func Nginx(files []File, scope policy.Scope, include NginxInclude) (Imported, error) {
	d := draft.New("nginx", files[0].Name, scope)
	if err := nginx.Read(d, files, include); err != nil {
		return Imported{}, err
	}
	return d.Finish()
}

// IngressNginx imports the annotations of Ingress objects by which ingress-nginx limits requests.
func IngressNginx(files []File, scope policy.Scope) (Imported, error) {
	opened, err := open(files)
	if err != nil {
		return Imported{}, err
	}
	d := draft.New("ingress-nginx", files[0].Name, scope)
	ingress.Read(d, opened)
	return d.Finish()
}

// importEnvoy imports one of Envoy's limiters, or BackendTrafficPolicies.
func importEnvoy(from string, files []File, scope policy.Scope, o EnvoyOptions,
	read func(to *draft.Draft, files []*source.Document, o EnvoyOptions) error,
) (Imported, error) {
	opened, err := open(files)
	if err != nil {
		return Imported{}, err
	}
	if gateway.HasPolicy(opened) {
		return importGateway(opened, scope, o)
	}
	d := draft.New(from, files[0].Name, scope)
	if err := read(d, opened, o); err != nil {
		return Imported{}, err
	}
	return d.Finish()
}

// importGateway imports BackendTrafficPolicies. They need no options.
func importGateway(files []*source.Document, scope policy.Scope, o EnvoyOptions) (Imported, error) {
	if o.Routes != nil || o.Listener != "" {
		return Imported{}, &UsageError{Message: "a " + source.TrafficPolicy + " names its requests itself",
			Hint: "leave out --routes and --listener"}
	}
	if err := o.RefuseKeys(); err != nil {
		return Imported{}, err
	}
	d := draft.New(source.TrafficPolicy, files[0].File, scope)
	gateway.Read(d, files)
	return d.Finish()
}

// open parses the files.
func open(files []File) (opened []*source.Document, err error) {
	for _, f := range files {
		in, err := source.Open(f)
		if err != nil {
			return nil, err
		}
		opened = append(opened, in)
	}
	return opened, nil
}
