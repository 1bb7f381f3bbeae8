// Package draft has the policy of an import while it is made: its rules, and what there is to say of the
// files that they are made of.
//
//	New            a draft without rules                                 draft.go
//	NewRule        makes a rule of what the reader says: its Terms,      rule.go
//	               which may leave out what other rules limit
//	Draft.Add      adds rules, in the order of the file, and notes what  draft.go
//	               their comments say
//	Findings       what the user should know, and what makes the import  draft.go
//	               fail: for functions that add no rules
//	Draft.Finish   names the rules, gives them their counters, writes    finish.go
//	               the policy and validates it
//
// Its invariant: what Draft.Finish returns without an error is a valid policy.
package draft

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Draft is the policy before it is written, with what there is to say of the files that it is made of.
type Draft struct {
	*Findings
	from    string // what it is imported from, such as "envoyproxy/ratelimit"
	file    string // the first file that it is made of
	Cluster bool   // its rules count over all Envoys

	Domain  string  // of envoyproxy/ratelimit, set by its reader
	Headers string  // which headers answers have, set by the readers of Envoy's filters
	rules   []*Rule // in the order of the policy
}

// New begins a draft. File is the first of those that it is made of.
func New(from, file string, scope policy.Scope) *Draft {
	return &Draft{Findings: newFindings(), from: from, file: file, Cluster: scope == policy.ScopeCluster}
}

// Add adds rules, and the notes of what their comments say.
func (d *Draft) Add(list ...*Rule) {
	for _, r := range list {
		d.rules = append(d.rules, r)
		for _, n := range r.comments {
			d.add(n)
		}
	}
}

// IsEmpty reports whether there are no rules yet.
func (d *Draft) IsEmpty() bool { return len(d.rules) == 0 }

// NoteEachEnvoy notes who counts what envoyproxy/ratelimit counts: its own limits and the global ones of Envoy Gateway.
func (d *Draft) NoteEachEnvoy() {
	if !d.Cluster {
		d.NoteImport("envoyproxy/ratelimit counts in one store for all proxies. Here each Envoy counts for itself: N of " +
			"them admit N times these limits. --scope cluster makes rules that count over all.")
	}
}

// Findings are what an import has to say of the files: notes, and problems, which make it fail. Each is said once, as
// what a file says in one place may hold for many routes.
//
//	               about                        the user reads       in the policy
//	Note           a place in a file            TEXT                 at its head
//	NoteNoRequest  a limit without a rule       TEXT                 at its head
//	NoteImport     the import as a whole        TEXT                 at its head
//	NoteProblem    what another reader says     TEXT                 at its head
//	Fail           a place in a file            the error            there is none
//
// Draft.Add notes what the comments of the rules say.
type Findings struct {
	notes    []note
	noted    map[note]bool
	problems policyfile.Errors
	failed   map[policyfile.Problem]bool
}

// note is something that the user should know.
type note struct {
	policyfile.Problem
	kind noteKind
	rule *Rule // that the note names, if it names one
}

// noteKind says where the policy has a note, and how the user reads it. NAME is that of a rule in the policy.
//
//	             in the policy             the user reads
//	atHead       TEXT, at its head         TEXT
//	ofLimiter    a comment TEXT of rules   TEXT, once for all of them
//	ofRule       a comment TEXT            NAME: TEXT
//	saysWhyOff   a comment Off: TEXT       NAME is off: TEXT
type noteKind uint8

const (
	atHead noteKind = iota
	ofLimiter
	ofRule
	saysWhyOff
)

// comment is the note as a rule has it.
func (n note) comment() string {
	if n.kind == saysWhyOff {
		return "Off: " + n.Message
	}
	return n.Message
}

func newFindings() *Findings {
	return &Findings{noted: map[note]bool{}, failed: map[policyfile.Problem]bool{}}
}

// Fail adds a problem.
func (f *Findings) Fail(at source.Place, text string) {
	if p := at.Problem(text); !f.failed[p] {
		f.failed[p] = true
		f.problems = append(f.problems, p)
	}
}

// Err returns the problems.
func (f *Findings) Err() error {
	if len(f.problems) > 0 {
		return f.problems
	}
	return nil
}

// NoteImport adds a note about the whole import.
func (f *Findings) NoteImport(text string) { f.Note(source.Place{}, text) }

// NoteCalendar notes how units differ that have fixed lengths in envoyproxy/ratelimit.
func (f *Findings) NoteCalendar(unit string) {
	if unit == "month" || unit == "year" {
		f.NoteImport("envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of " +
			"365. Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}

// Note adds a note about a place.
func (f *Findings) Note(at source.Place, text string) { f.NoteProblem(at.Problem(text)) }

// NoteNoRequest notes a limit that has no rule, because no request comes to it.
func (f *Findings) NoteNoRequest(at source.Place, name string) {
	f.Note(at, strings.TrimPrefix(name+": no request reaches this limit, so there is no rule for it", ": "))
}

// NoteProblem adds what another reader says of a file as a note.
func (f *Findings) NoteProblem(p policyfile.Problem) { f.add(note{Problem: p}) }

func (f *Findings) add(n note) {
	if !f.noted[n] {
		f.noted[n] = true
		f.notes = append(f.notes, n)
	}
}

// SortByLine puts the notes in the order of the lines of the files.
func (f *Findings) SortByLine() {
	slices.SortStableFunc(f.notes, func(a, b note) int { return cmp.Compare(a.Line, b.Line) })
}

// plainNotes are the notes for the user, with the names that rules have in the policy.
func (f *Findings) plainNotes(names map[*Rule]string) (list []policyfile.Problem) {
	for _, n := range f.notes {
		switch n.kind {
		case ofRule:
			n.Message = names[n.rule] + ": " + n.Message
		case saysWhyOff:
			n.Message = names[n.rule] + " is off: " + n.Message
		case atHead, ofLimiter:
		}
		list = append(list, n.Problem)
	}
	return list
}
