package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// finish sorts the notes, writes the policy and validates it.
func (j *job) finish() (Imported, error) {
	if err := cmp.Or(j.err(), j.keys.unused()); err != nil {
		return Imported{}, err
	}
	if len(j.draft.rules) == 0 {
		return Imported{Notes: j.plainNotes()}, ErrNothing
	}
	j.draft.nameRules()
	if j.cluster {
		j.draft.countOverAll()
	}
	slices.SortStableFunc(j.notes, func(a, b note) int { return cmp.Compare(a.File, b.File) })
	text := j.draft.asYAML(j.notes)
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
		if !slices.Contains(bounds, p.Code) {
			return nil
		}
		at := j.files[0].top()
		name := "it"
		path := p.Path
		if r, below := j.draft.ruleAt(p.Path); r != nil {
			at = r.quota.at
			name = r.Name
			path = below
		}
		problems = append(problems, at.problem(name+" is beyond what a policy may have: "+
			strings.TrimPrefix(path+": ", ": ")+message.Of(p)))
	}
	return problems
}

// ruleAt is the rule that a path such as rules[2].limits[0] of the policy leads into, and the path
// below the rule. It is nil for other paths. The policy has the rules in the order of the draft.
func (d *draft) ruleAt(path string) (r *rule, below string) {
	rest, ok := strings.CutPrefix(path, "rules[")
	if !ok {
		return nil, ""
	}
	index, below, ok := strings.Cut(rest, "].")
	number, err := strconv.Atoi(index)
	if !ok || err != nil || number >= len(d.rules) {
		return nil, ""
	}
	return &d.rules[number], below
}
