package draft

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
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
//  2. Rules that count together get one counter: see shareCounters.
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
	slices.SortStableFunc(d.notes, func(a, b note) int { return cmp.Compare(a.File, b.File) })
	if len(d.rules) == 0 {
		return Imported{Notes: d.plainNotes(nil)}, ErrNothing
	}
	rules, names := named(d.rules)
	shareCounters(rules)
	if d.Cluster {
		countOverAll(rules)
	}
	text := d.asYAML(rules)
	if len(text) > policy.MaxBytes {
		return Imported{}, tooLarge(len(text))
	}
	notes := d.plainNotes(names)
	if _, _, _, err := policyfile.Read("imported policy", text); err != nil {
		// The text fits, but what proxies get of it may be longer.
		if size := policyfile.Size(text); size > policy.MaxBytes {
			return Imported{}, tooLarge(size)
		}
		if problems := d.beyond(text, rules); problems != nil {
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

// policyRule is a rule with what depends on the other rules of the policy.
type policyRule struct {
	*Rule
	name                  string // its own, or with a number behind it where an earlier rule has that
	counter, scope, lease string // as the policy has them
}

// named gives each rule a name of its own for the policy.
func named(rules []*Rule) (list []*policyRule, names map[*Rule]string) {
	names = map[*Rule]string{}
	taken := map[string]bool{}
	highest := map[string]int{} // the number behind a name that more than one rule has
	for _, r := range rules {
		name := r.terms.Name
		for taken[name] {
			highest[r.terms.Name] = max(highest[r.terms.Name]+1, 2)
			name = Clip(r.terms.Name, policy.MaxNameBytes-5) + "-" + strconv.Itoa(highest[r.terms.Name])
		}
		taken[name] = true
		names[r] = name
		list = append(list, &policyRule{Rule: r, name: name})
	}
	return list, names
}

// shareCounters gives rules one counter where their requests have one there. These rules have one name, count by one
// limit of the configuration, allow the same, and have the same parts in the key. A rule of mode off has a counter of
// its own.
func shareCounters(list []*policyRule) {
	type limit struct {
		name string
		by   LimitID
		Numbers
	}
	owners := map[limit][]*policyRule{} // of the counters of a limit, each for another key
	for _, r := range list {
		if r.mode() == policy.ModeOff {
			continue
		}
		of := limit{r.terms.Name, r.terms.CountsBy, r.terms.Limit.Numbers}
		hasKey := func(other *policyRule) bool {
			return slices.EqualFunc(r.terms.Key, other.terms.Key, request.Part.Is)
		}
		if i := slices.IndexFunc(owners[of], hasKey); i >= 0 {
			r.counter = owners[of][i].name
		} else {
			owners[of] = append(owners[of], r)
		}
	}
}

// countOverAll gives the rules scope cluster, except those with a counter for each connection, because
// one Envoy has the whole connection.
func countOverAll(list []*policyRule) {
	sharing := map[string][]*policyRule{} // by their counter
	for _, r := range list {
		if slices.ContainsFunc(r.terms.Key, request.ConnectionID.Is) {
			continue
		}
		r.scope = string(policy.ScopeCluster)
		counter := cmp.Or(r.counter, r.name)
		sharing[counter] = append(sharing[counter], r)
	}
	for _, rules := range sharing {
		if mayLease(rules) {
			continue
		}
		for _, r := range rules {
			r.lease = "off"
		}
	}
}

// mayLease reports whether rules that share a counter may lease its units. Either all of these rules do, or none:
//
//   - A proxy that has a lease denies without an ask, and nobody counts that. So rules that count denials do not lease.
//   - Units leased under one limit must not be spent under another one. So rules with different overrides do not lease.
func mayLease(sharing []*policyRule) bool {
	first := sharing[0].terms
	for _, r := range sharing {
		isAlike := slices.EqualFunc(r.terms.Overrides, first.Overrides, Override.same)
		if r.terms.countsDenied() || !isAlike {
			return false
		}
	}
	return true
}

// document is the policy as it is written.
type document struct {
	Version int          `yaml:"version"`
	Domain  string       `yaml:"domain,omitempty"`
	Headers string       `yaml:"headers,omitempty"`
	Rules   []*yaml.Node `yaml:"rules"`
}

// asYAML is the policy's text. At its head are the notes that are not about one rule.
func (d *Draft) asYAML(rules []*policyRule) []byte {
	var b bytes.Buffer
	b.WriteString(asComment("Imported from "+d.from+". Read the comments: they say what differs.") + "\n")
	for _, n := range d.notes {
		if n.kind == atHead {
			if n.File == d.file && n.Line == 0 {
				n.File = "" // a path without a file is in the first one
			}
			b.WriteString(asComment("- "+n.String()) + "\n")
		}
	}
	doc := document{Version: policy.Version, Domain: d.Domain, Headers: d.Headers}
	for _, r := range rules {
		doc.Rules = append(doc.Rules, r.asYAML())
	}
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		panic(err) // texts, numbers and lists of them
	}
	return b.Bytes()
}

// ruleText has the fields of a rule as the policy has them, in its order; empty ones are left out.
type ruleText struct {
	Name           string            `yaml:"name"`
	Counter        string            `yaml:"counter,omitempty"`
	Scope          string            `yaml:"scope,omitempty"`
	Lease          string            `yaml:"lease,omitempty"`
	Match          request.Match     `yaml:"match,omitempty"`
	Exempt         []request.Match   `yaml:"exempt,omitempty"`
	Key            []request.Part    `yaml:"key,omitempty,flow"`
	Algorithm      algorithm         `yaml:"algorithm,omitempty"`
	Limits         []any             `yaml:"limits,flow"`
	Overrides      []Override        `yaml:"overrides,omitempty"`
	Cost           uint64            `yaml:"cost,omitempty"`
	Capacity       uint64            `yaml:"capacity,omitempty"`
	MissingKey     policy.MissingKey `yaml:"missing_key,omitempty"`
	CountDenied    bool              `yaml:"count_denied,omitempty"`
	Mode           policy.Mode       `yaml:"mode,omitempty"`
	EnforcePercent uint64            `yaml:"enforce_percent,omitempty"`
	Response       *Response         `yaml:"response,omitempty,flow"`
}

// asYAML is the rule with all its fields, below its comments.
func (r *policyRule) asYAML() *yaml.Node {
	t := &r.terms
	match, _ := t.Requests.Match() // also that of a rule that is off
	text := ruleText{
		Name: r.name, Counter: r.counter, Scope: r.scope, Lease: r.lease,
		Match: match, Exempt: r.exempt, Key: t.Key,
		Algorithm: t.Limit.algorithm, Limits: t.Limit.asLimits(), Overrides: t.Overrides,
		Cost: t.Cost, Capacity: t.Capacity, MissingKey: t.MissingKey, CountDenied: t.countsDenied(),
		Mode: r.mode(), EnforcePercent: r.percent, Response: t.Enforcement.Response,
	}
	n := request.Encoded(text)
	var comments []string
	for _, c := range r.comments {
		comments = append(comments, asComment(c.comment()))
	}
	switch {
	case !r.isOff:
	case r.modeThere == "":
		comments = append(comments, asComment("Remove mode once you have dealt with that."))
	case r.modeThere == policy.ModeShadow:
		comments = append(comments, asComment("Set mode to shadow once you have dealt with that."))
	}
	n.HeadComment = strings.Join(comments, "\n")
	return n
}

const commentWidth = 94

// asComment writes text as lines of a comment.
func asComment(text string) string {
	var lines []string
	line := "#"
	for word := range strings.FieldsSeq(printable.Text(text)) {
		if len(line)+1+len(word) > commentWidth {
			lines = append(lines, line)
			line = "#  "
		}
		line += " " + word
	}
	return strings.Join(append(lines, line), "\n")
}

// bounds are the codes of problems that come of the file, and not of the import: it has too much of something, or a
// character or an expression that no policy takes.
var bounds = []policy.Code{
	policy.TooLong, policy.TooMany, policy.WrongCount, policy.BadExpression,
	policy.ControlChar, policy.MoreProblems,
}

// beyond are the problems of a policy in which there is too much of something, each at the
// limit that makes the rule; nil if anything else is wrong with it.
func (d *Draft) beyond(text []byte, rules []*policyRule) (problems policyfile.Errors) {
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
		if r, below := ruleAt(rules, p.Path); r != nil {
			at = r.terms.Limit.At
			name = r.name
			path = below
		}
		problems = append(problems, at.Problem(name+" is beyond what a policy may have: "+
			strings.TrimPrefix(path+": ", ": ")+message.Of(p)))
	}
	return problems
}

// ruleAt is the rule that a path such as rules[2].limits[0] of the policy leads into, and the path
// below the rule. It is nil for other paths.
func ruleAt(rules []*policyRule, path string) (r *policyRule, below string) {
	rest, ok := strings.CutPrefix(path, "rules[")
	if !ok {
		return nil, ""
	}
	index, below, ok := strings.Cut(rest, "].")
	number, err := strconv.Atoi(index)
	if !ok || err != nil || number >= len(rules) {
		return nil, ""
	}
	return rules[number], below
}
