// Package importer makes a sluice policy of the configuration of another rate
// limiter: envoyproxy/ratelimit, Envoy's local rate limit filter, or a
// BackendTrafficPolicy of Envoy Gateway.
//
// Its invariant: what a file says about limits ends in the policy or in a note,
// and what it does not say, such as which requests carry a descriptor, never
// becomes a rule that denies: such a rule is off. A field that Envoy's types
// lack is an error. The filter must never import it.
//
// An import has two sides. A configuration has limits, each for a level: keys
// with values (leaf.go). A request has descriptors: what Envoy's routes and
// their actions send for it (site.go, routes.go, scope.go, action.go; guess.go
// where there are no routes). For each descriptor the limiter's search ends in
// one of some leaves, and each leaf with a limit becomes a rule (descriptor.go),
// which draft.go writes. service.go, local.go and gateway.go bring the two
// sides together, one for each limiter; documents.go opens the files.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
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

// job is one import.
type job struct {
	*reader
	Options
	draft
	files []*source
	keys  *keyParts
}

// run imports BackendTrafficPolicies, or else what read makes rules of.
func run(from string, files []File, o Options, read func(j *job) error) (Imported, error) {
	j := &job{Options: o, draft: draft{from: from}, reader: newReader(o.Cluster)}
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
	hasTrafficPolicy := func(in *source) bool { return len(ofKind(in.root, trafficPolicy)) > 0 }
	if slices.ContainsFunc(j.files, hasTrafficPolicy) {
		read = (*job).trafficPolicies
	}
	if err := read(j); err != nil {
		return Imported{}, cmp.Or(j.err(), err)
	}
	return j.finish()
}

// finish sorts the notes, writes the policy and validates it.
func (j *job) finish() (Imported, error) {
	if err := cmp.Or(j.err(), j.keys.unused()); err != nil {
		return Imported{}, err
	}
	if len(j.rules) == 0 {
		return Imported{Notes: j.plainNotes()}, ErrNothing
	}
	j.nameRules()
	if j.cluster {
		j.overAll()
	}
	slices.SortStableFunc(j.notes, func(a, b note) int { return cmp.Compare(a.File, b.File) })
	text := j.write(j.notes)
	if len(text) > policy.MaxBytes {
		return Imported{}, tooLarge(len(text))
	}
	made := Imported{Policy: text, Notes: j.plainNotes()}
	if _, _, _, err := policyfile.Read("imported policy", text); err != nil {
		if size := policyfile.Size(text); size > policy.MaxBytes {
			return Imported{}, tooLarge(size)
		}
		if problems := j.beyond(text); problems != nil {
			return Imported{Notes: made.Notes}, problems
		}
		return made, fmt.Errorf("the policy is not valid, which is a fault of this import, not of the file: %w", err)
	}
	return made, nil
}

func (j *job) plainNotes() (list []policyfile.Problem) {
	for i := range j.notes {
		list = append(list, j.notes[i].Problem)
	}
	return list
}

func tooLarge(size int) error {
	return fmt.Errorf("the policy would have %d bytes, and the maximum is %d (1 MiB): split the file by domain or "+
		"descriptor, and import the pieces", size, policy.MaxBytes)
}

// bounds are the codes of what a policy may have less of than another limiter.
var bounds = []policy.Code{
	policy.TooLong, policy.TooMany, policy.WrongCount, policy.BadExpression,
	policy.ControlChar, policy.MoreProblems,
}

// beyond are the problems of a policy in which there is too much of something, each at the
// limit that makes the rule; nil if anything else is wrong with it.
func (j *job) beyond(text []byte) (problems policyfile.Errors) {
	root, _ := policyfile.Parse("", text)
	if root == nil {
		return nil // the caller says why
	}
	_, found := policy.Read(root)
	for i := range found {
		p := &found[i]
		at, name := j.files[0].top(), "it"
		of, number := p.Path, 0
		if _, err := fmt.Sscanf(of, "rules[%d].", &number); err == nil {
			at, name = j.rules[number].quota.at, j.rules[number].Name
			_, of, _ = strings.Cut(of, ".")
		}
		if !slices.Contains(bounds, p.Code) {
			return nil
		}
		problems = append(problems, at.problem(name+" is beyond what a policy may have: "+
			strings.TrimPrefix(of+": ", ": ")+message.Of(p)))
	}
	return problems
}
