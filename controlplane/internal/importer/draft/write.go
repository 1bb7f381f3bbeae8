package draft

import (
	"bytes"
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
		if !n.ofRule {
			if n.Line == 0 {
				n.File = "" // the path tells which
			}
			b.WriteString(asComment("- "+n.String()) + "\n")
		}
	}
	doc := document{Version: policy.Version, Domain: d.Domain, Headers: d.Headers}
	for i := range d.Rules {
		doc.Rules = append(doc.Rules, d.Rules[i].asYAML())
	}
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		panic(err) // texts, numbers and lists of them
	}
	return b.Bytes()
}

// asYAML is the rule with all its fields, below its comments.
func (r *Rule) asYAML() *yaml.Node {
	f := r.fields
	f.Algorithm = r.Quota.Algorithm
	f.Limits = r.Quota.asLimits()
	switch {
	case r.Off:
		f.Mode = string(policy.ModeOff)
	case r.Quota.Shadow:
		f.Mode = string(policy.ModeShadow)
	default:
		f.EnforcePercent = r.Quota.Percent
	}
	n := request.Encoded(f)
	var comments []string
	for _, c := range r.Comments {
		comments = append(comments, asComment(c))
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
