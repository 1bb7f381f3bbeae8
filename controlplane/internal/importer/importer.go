// Package importer makes a sluice policy of the configuration of another rate
// limiter: envoyproxy/ratelimit, or Envoy's local rate limit filter.
//
// Its invariant: whatever it reads ends in the policy or in a note. Every object
// it reads counts which of its fields were asked for, so that a field nobody
// here has heard of is a note too. What cannot be known — which requests carry
// a descriptor, for one — never becomes a rule that denies: such a rule is off.
// It writes text that a person will read and change; it must never be imported
// by the filter, and it talks to no one.
package importer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// File is a configuration to import; the name is for messages.
type File struct {
	Name string
	Text []byte
}

// Imported is a policy as YAML, with the notes as comments, and the notes.
type Imported struct {
	Policy []byte
	Notes  []policyfile.Problem
}

// ErrNothing is returned for a configuration in which there is nothing to
// import.
var ErrNothing = errors.New("there is no rate limit in it")

// Choices is returned where the configuration has several listeners with
// limits of their own, of which one policy can hold one.
type Choices struct{ Names []string }

func (c *Choices) Error() string {
	return fmt.Sprintf("there are rate limits for %d listeners, and a policy is one listener's", len(c.Names))
}

// notes collects what is told once, in the order of the sources.
type notes struct {
	list []policyfile.Problem
	told map[policyfile.Problem]bool
}

// add notes something about a place; without one it is about the whole.
func (n *notes) add(at place, message string) {
	p := policyfile.Problem{File: at.file, Line: at.line, Column: at.column, Message: message}
	if n.told[p] {
		return
	}
	if n.told == nil {
		n.told = map[policyfile.Problem]bool{}
	}
	n.told[p] = true
	n.list = append(n.list, p)
}

// place is where something stands in a source.
type place struct {
	file         string
	line, column int
}

func (p place) String() string {
	return p.file + ":" + strconv.Itoa(p.line) + ":" + strconv.Itoa(p.column)
}

// finish writes the draft, holds it against the same validation as every policy,
// and sorts the notes.
func finish(d *draft, n *notes) (Imported, error) {
	if len(d.rules) == 0 {
		return Imported{Notes: n.list}, ErrNothing
	}
	for _, r := range d.rules {
		if many := len(r.overrides); many > policy.MaxOverrides {
			at := r.quota.place
			return Imported{Notes: n.list}, policyfile.Errors{{File: at.file, Line: at.line, Column: at.column, Message: fmt.Sprintf(
				"%s makes a rule with %d overrides, the most is %d: import fewer values, or fewer with a limit of their own", r.name, many, policy.MaxOverrides)}}
		}
	}
	d.nameRules()
	slices.SortStableFunc(n.list, func(a, b policyfile.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	text := d.write(n.list)
	if len(text) > policy.MaxBytes {
		return Imported{Notes: n.list}, fmt.Errorf(
			"the policy made of it would have %d bytes, and a policy has at most %d (1 MiB): split the file by domain or descriptor, and import the parts", len(text), policy.MaxBytes)
	}
	if problems := check(text); len(problems) > 0 {
		return Imported{Policy: text, Notes: n.list},
			fmt.Errorf("the policy made of it is not valid, which is a fault of this import, not of the file: %w", problems)
	}
	return Imported{Policy: text, Notes: n.list}, nil
}

// check validates what was made.
func check(text []byte) policyfile.Errors {
	_, _, _, err := policyfile.Read("imported policy", text)
	var problems policyfile.Errors
	errors.As(err, &problems)
	return problems
}

// isBlank reports whether a file has nothing but space in it.
func isBlank(text []byte) bool { return len(bytes.TrimSpace(text)) == 0 }
