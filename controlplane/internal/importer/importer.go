// Package importer makes a sluice policy of the configuration of another rate
// limiter: envoyproxy/ratelimit, or Envoy's local rate limit filter.
//
// Its invariant: what a file says about limits ends in the policy or in a note.
// Each field of Envoy's types is decoded, noted, or listed as saying nothing
// about limits (fields.go); a field that the types lack is noted too. What the
// files do not say, such as which requests carry a descriptor, never becomes a
// rule that denies: such a rule is off. The filter must never import it.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// File is a configuration to import; the name is for messages.
type File struct {
	Name string
	Text []byte
}

// Imported is a policy as YAML with the notes as comments, and the notes.
type Imported struct {
	Policy []byte
	Notes  []policyfile.Problem
}

// ErrNothing is returned for a configuration without limits.
var ErrNothing = errors.New("there is no rate limit in it")

// Choices is returned for a configuration with limits for several listeners: a
// policy is for one.
type Choices struct {
	Names []string
	Given string // the name that is none of them
}

func (c *Choices) Error() string {
	if c.Given != "" {
		return fmt.Sprintf("there is no listener %q with rate limits", c.Given)
	}
	return fmt.Sprintf("there are rate limits for %d listeners, and a policy is for one", len(c.Names))
}

// notes collects what the user should know, each note once, and the problems of
// the files, which make the import fail.
type notes struct {
	cluster  bool // the rules count over all Envoys
	list     []policyfile.Problem
	seen     map[place]bool
	problems policyfile.Errors
}

// err returns the problems.
func (n *notes) err() error {
	if len(n.problems) > 0 {
		return n.problems
	}
	return nil
}

// add adds a note about a place, or about the whole file.
func (n *notes) add(at place, message string) {
	if at.Message = message; n.seen[at] {
		return
	}
	if n.seen == nil {
		n.seen = map[place]bool{}
	}
	n.seen[at] = true
	n.list = append(n.list, at)
}

// addUnlessCluster adds a note that holds of rules which each Envoy counts for itself.
func (n *notes) addUnlessCluster(at place, message string) {
	if !n.cluster {
		n.add(at, message)
	}
}

// place is a problem's place, without a problem.
type place = policyfile.Problem

// job is one import.
type job struct {
	Options
	draft
	files []*source
	notes *notes
	keys  *keyParts
}

// run imports BackendTrafficPolicies, or else what read makes rules of.
func run(from string, files []File, o Options, read func(j *job) error) (Imported, error) {
	j := &job{Options: o, draft: draft{from: from}, notes: &notes{cluster: o.Cluster}}
	var err error
	if j.keys, err = o.parts(); err != nil {
		return Imported{}, err
	}
	for _, f := range files {
		in, err := open(f, j.notes)
		if err != nil {
			return Imported{}, err
		}
		j.files = append(j.files, in)
	}
	if slices.ContainsFunc(j.files, func(in *source) bool { return len(ofKind(in.root, trafficPolicy)) > 0 }) {
		read = (*job).trafficPolicies
	}
	if err := read(j); err != nil {
		return Imported{}, cmp.Or(j.notes.err(), err)
	}
	return j.finish()
}

// finish sorts the notes, writes the policy and validates it.
func (j *job) finish() (Imported, error) {
	notes := j.notes
	if err := cmp.Or(notes.err(), j.keys.unused()); err != nil {
		return Imported{}, err
	}
	none := Imported{Notes: notes.list}
	if len(j.rules) == 0 {
		return none, ErrNothing
	}
	for _, r := range j.rules {
		if n := len(r.Overrides); n > policy.MaxOverrides {
			at := r.quota.place
			at.Message = fmt.Sprintf("%s makes a rule with %d overrides, the maximum is %d: "+
				"import fewer values, or fewer with a limit of their own", r.Name, n, policy.MaxOverrides)
			return none, policyfile.Errors{at}
		}
	}
	j.nameRules()
	if notes.cluster {
		j.overAll()
	}
	slices.SortStableFunc(notes.list, func(a, b policyfile.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	text := j.write(notes.list)
	if len(text) > policy.MaxBytes {
		return none, fmt.Errorf("the policy would have %d bytes, and the maximum is %d (1 MiB): split the file by domain or "+
			"descriptor, and import the pieces", len(text), policy.MaxBytes)
	}
	made := Imported{Policy: text, Notes: notes.list}
	if _, _, _, err := policyfile.Read("imported policy", text); err != nil {
		return made, fmt.Errorf("the policy is not valid, which is a fault of this import, not of the file: %w", err)
	}
	return made, nil
}
