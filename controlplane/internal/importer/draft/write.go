package draft

import (
	"bytes"
	"cmp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// document is the policy as it is written.
type document struct {
	Version int          `yaml:"version"`
	Domain  string       `yaml:"domain,omitempty"`
	Headers string       `yaml:"headers,omitempty"`
	Rules   []*yaml.Node `yaml:"rules"`
}

// asYAML is the policy's text. At its head are the notes that are not about one rule.
func (d *Draft) asYAML() []byte {
	var b bytes.Buffer
	b.WriteString(asComment("Imported from "+d.from+". Read the comments: they say what differs.") + "\n")
	for _, n := range d.notes {
		if n.kind == ofFiles {
			if n.Line == 0 {
				n.File = "" // the path tells which
			}
			b.WriteString(asComment("- "+n.String()) + "\n")
		}
	}
	doc := document{Version: policy.Version, Domain: d.Domain, Headers: d.Headers}
	for _, r := range d.Rules {
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
	Name           string          `yaml:"name"`
	Counter        string          `yaml:"counter,omitempty"`
	Scope          string          `yaml:"scope,omitempty"`
	Lease          string          `yaml:"lease,omitempty"`
	Match          request.Match   `yaml:"match,omitempty"`
	Exempt         []request.Match `yaml:"exempt,omitempty"`
	Key            []request.Part  `yaml:"key,omitempty,flow"`
	Algorithm      string          `yaml:"algorithm,omitempty"`
	Limits         []any           `yaml:"limits,flow"`
	Overrides      []Override      `yaml:"overrides,omitempty"`
	Cost           uint64          `yaml:"cost,omitempty"`
	Capacity       uint64          `yaml:"capacity,omitempty"`
	MissingKey     string          `yaml:"missing_key,omitempty"`
	CountDenied    bool            `yaml:"count_denied,omitempty"`
	Mode           string          `yaml:"mode,omitempty"`
	EnforcePercent uint64          `yaml:"enforce_percent,omitempty"`
	Response       *Response       `yaml:"response,omitempty,flow"`
}

// asYAML is the rule with all its fields, below its comments.
func (r *Rule) asYAML() *yaml.Node {
	t := &r.terms
	text := ruleText{
		Name: r.policyName, Counter: r.counter, Scope: r.scope, Lease: r.lease,
		Match: t.Requests.Match, Exempt: r.exempt, Key: r.key(),
		Algorithm: t.Limit.Algorithm, Limits: t.Limit.asLimits(), Overrides: r.overrides(),
		Cost: t.Cost, Capacity: t.Capacity, MissingKey: t.MissingKey, CountDenied: t.CountDenied,
		Response: cmp.Or(r.filter.Response, t.Response),
	}
	switch {
	case r.isOff():
		text.Mode = string(policy.ModeOff)
	case r.isShadow():
		text.Mode = string(policy.ModeShadow)
	case r.deniesShare():
		text.EnforcePercent = r.filter.Percent
	}
	n := request.Encoded(text)
	var comments []string
	for _, c := range r.comments {
		comments = append(comments, asComment(c))
	}
	if r.isUnsaid {
		comments = append(comments, asComment("Remove mode once you have dealt with that."))
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
