package draft

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Imported is a policy as YAML with the notes as comments, and the notes.
type Imported struct {
	Policy []byte
	Notes  []policyfile.Problem
}

// ErrNothing is returned for a configuration without limits.
var ErrNothing = errors.New("there is no rate limit in it")

// ErrFault is returned where an import made a policy that is not valid.
var ErrFault = errors.New("the policy is not valid, which is a fault of this import, not of the file")

// Finish makes the policy of the rules:
//
//  1. It gives each rule a name of its own.
//  2. Rules of one limit get one counter: those of one name that agree in what mayShareCounter compares.
//  3. With --scope cluster the rules get that scope. Some of them may not lease units.
//  4. It writes the policy, with the notes by their files.
//  5. It validates what it wrote.
//
// There is a policy only without an error:
//
//	                                        Policy   Notes   error
//	the policy is valid                     yes      yes     none
//	a reader found problems                 none     none    these
//	there are no rules                      none     yes     ErrNothing
//	the policy has too many bytes           none     none    says so
//	there is too much of something in it    none     yes     at the limits that it comes from
//	anything else is wrong with it          none     yes     ErrFault
func (d *Draft) Finish() (Imported, error) {
	if err := d.Err(); err != nil {
		return Imported{}, err
	}
	if len(d.Rules) == 0 {
		return Imported{Notes: d.plainNotes()}, ErrNothing
	}
	d.nameRules()
	d.shareCounters()
	if d.Cluster {
		d.countOverAll()
	}
	slices.SortStableFunc(d.notes, func(a, b note) int { return cmp.Compare(a.File, b.File) })
	text := d.asYAML()
	if len(text) > policy.MaxBytes {
		return Imported{}, tooLarge(len(text))
	}
	notes := d.plainNotes()
	if _, _, _, err := policyfile.Read("imported policy", text); err != nil {
		// The text fits, but what proxies get of it may be longer.
		if size := policyfile.Size(text); size > policy.MaxBytes {
			return Imported{}, tooLarge(size)
		}
		if problems := d.beyond(text); problems != nil {
			return Imported{Notes: notes}, problems
		}
		return Imported{Notes: notes}, fmt.Errorf("%w: %w", ErrFault, err)
	}
	return Imported{Policy: text, Notes: notes}, nil
}

func tooLarge(size int) error {
	return fmt.Errorf("the policy would have %d bytes, and the maximum is %d (1 MiB): split the file by domain or "+
		"descriptor, and import the pieces", size, policy.MaxBytes)
}

// bounds are the codes of problems that come of the file, and not of the import: it has too much of something, or a
// character or an expression that no policy takes.
var bounds = []policy.Code{
	policy.TooLong, policy.TooMany, policy.WrongCount, policy.BadExpression,
	policy.ControlChar, policy.MoreProblems,
}

// beyond are the problems of a policy in which there is too much of something, each at the
// limit that makes the rule; nil if anything else is wrong with it.
func (d *Draft) beyond(text []byte) (problems policyfile.Errors) {
	root, _ := policyfile.Parse("", text)
	if root == nil {
		return nil // the caller says why
	}
	_, found := policy.Read(root)
	for i := range found {
		p := &found[i]
		if !slices.Contains(bounds, p.Code) {
			return nil
		}
		at := source.Place{File: d.file}
		name := "it"
		path := p.Path
		if r, below := d.ruleAt(p.Path); r != nil {
			at = r.terms.Limit.At
			name = r.policyName
			path = below
		}
		problems = append(problems, at.Problem(name+" is beyond what a policy may have: "+
			strings.TrimPrefix(path+": ", ": ")+message.Of(p)))
	}
	return problems
}

// ruleAt is the rule that a path such as rules[2].limits[0] of the policy leads into, and the path
// below the rule. It is nil for other paths. The policy has the rules in the order of the draft.
func (d *Draft) ruleAt(path string) (r *Rule, below string) {
	rest, ok := strings.CutPrefix(path, "rules[")
	if !ok {
		return nil, ""
	}
	index, below, ok := strings.Cut(rest, "].")
	number, err := strconv.Atoi(index)
	if !ok || err != nil || number >= len(d.Rules) {
		return nil, ""
	}
	return d.Rules[number], below
}
