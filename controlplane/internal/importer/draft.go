package importer

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// draft is the policy before it is written.
type draft struct {
	from    string // "envoyproxy/ratelimit"
	domain  string
	headers string
	rules   []rule
}

// rule is a rule in the making: its fields, and what the import still needs to know of it. Fields
// that follow from quota and off are empty here: asYAML fills them.
type rule struct {
	fields
	quota    *quota
	off      bool
	comments []string
	order    int   // of its limit in the configuration
	identity place // only rules of one identity may share a counter
}

// fields are the fields of a rule as the policy has them; empty ones are left out.
type fields struct {
	Name           string     `yaml:"name"`
	Counter        string     `yaml:"counter,omitempty"`
	Scope          string     `yaml:"scope,omitempty"`
	Lease          string     `yaml:"lease,omitempty"`
	Match          match      `yaml:"match,omitempty"`
	Exempt         []match    `yaml:"exempt,omitempty"`
	Key            []part     `yaml:"key,omitempty,flow"`
	Algorithm      string     `yaml:"algorithm,omitempty"`
	Limits         []any      `yaml:"limits,flow"`
	Overrides      []override `yaml:"overrides,omitempty"`
	Cost           uint64     `yaml:"cost,omitempty"`
	Capacity       uint64     `yaml:"capacity,omitempty"`
	MissingKey     string     `yaml:"missing_key,omitempty"`
	CountDenied    bool       `yaml:"count_denied,omitempty"`
	Mode           string     `yaml:"mode,omitempty"`
	EnforcePercent uint64     `yaml:"enforce_percent,omitempty"`
	Response       *response  `yaml:"response,omitempty,flow"`
}

// override gives keys other numbers; without a quota they are unlimited.
type override struct {
	patterns []string
	quota    *quota
}

// quota is one limit and how it is enforced.
type quota struct {
	numbers
	unlimited bool
	shadow    bool
	percent   uint64 // 0 = all
	notes     []string
	whyOff    []string // why its rule is off
	at        place
}

// numbers are what a quota allows.
type numbers struct {
	algorithm string // token_bucket, concurrency, or empty
	requests  uint64
	per       string
	burst     uint64
}

// MarshalYAML writes the override on a line.
func (o override) MarshalYAML() (any, error) {
	text := struct {
		Key       []string `yaml:"key"`
		Limits    []any    `yaml:"limits,omitempty"`
		Unlimited bool     `yaml:"unlimited,omitempty"`
	}{Key: o.patterns, Unlimited: o.quota == nil}
	if o.quota != nil {
		text.Limits = o.quota.asLimits()
	}
	return flow(text), nil
}

// response is what a denied request gets.
type response struct {
	Status  uint32            `yaml:"status,omitempty"`
	Headers map[string]string `yaml:"headers,omitempty"`
}

// same reports whether two overrides give the same keys the same numbers.
func (o override) same(other override) bool {
	return slices.Equal(o.patterns, other.patterns) && (o.quota == nil) == (other.quota == nil) &&
		(o.quota == nil || o.quota.numbers == other.quota.numbers)
}

// isOfClass reports whether one rule can have both quotas: they have one window and mode.
func (q *quota) isOfClass(other *quota) bool {
	return q.algorithm == other.algorithm && q.per == other.per && q.shadow == other.shadow && q.percent == other.percent
}

// asLimits is the quota as a rule's limits.
func (q *quota) asLimits() []any {
	switch {
	case q.algorithm == "":
		return []any{strconv.FormatUint(q.requests, 10) + "/" + q.per}
	case q.algorithm == "concurrency":
		return []any{q.requests}
	case q.burst == q.requests:
		return []any{limitText{q.requests, q.per, nil}}
	}
	return []any{limitText{q.requests, q.per, &q.burst}}
}

type limitText struct {
	Requests uint64  `yaml:"requests"`
	Per      string  `yaml:"per"`
	Burst    *uint64 `yaml:"burst,omitempty"`
}

// nameRules makes the names unique. Rules that had one name share a counter
// where they can, because their requests had one counter.
func (d *draft) nameRules() {
	taken, next := map[string]bool{}, map[string]int{}
	counters := map[string][]*rule{} // of each name, the rules with counters of their own
	for i := range d.rules {
		r := &d.rules[i]
		if r.Name == "" {
			r.Name = "rule"
		}
		base := r.Name
		for taken[r.Name] {
			next[base] = max(next[base]+1, 2)
			r.Name = clip(base, policy.MaxNameBytes-5) + "-" + strconv.Itoa(next[base])
		}
		taken[r.Name] = true
		shares := func(other *rule) bool { return !r.off && !other.off && other.mayShareCounter(r) }
		if i := slices.IndexFunc(counters[base], shares); i >= 0 {
			r.Counter = counters[base][i].Name
		} else {
			counters[base] = append(counters[base], r)
		}
	}
}

// countOverAll gives the rules scope cluster, except those with a counter for each connection, because
// one Envoy has the whole connection.
func (d *draft) countOverAll() {
	sharing := map[string][]*rule{} // by their counter
	for i := range d.rules {
		r := &d.rules[i]
		if slices.ContainsFunc(r.Key, connectionID.is) {
			continue
		}
		r.Scope = string(policy.ScopeCluster)
		counter := cmp.Or(r.Counter, r.Name)
		sharing[counter] = append(sharing[counter], r)
	}
	for _, rules := range sharing {
		if mayLease(rules) {
			continue
		}
		for _, r := range rules {
			r.Lease = "off"
		}
	}
}

// mayLease reports whether rules that share a counter may lease its units: all of them do or none. They
// may not if one of them counts denials, or allows another number than the others: units leased under
// one limit must not be spent under another.
func mayLease(sharing []*rule) bool {
	first := sharing[0]
	for _, r := range sharing {
		isAlike := r.quota.numbers == first.quota.numbers && slices.EqualFunc(r.Overrides, first.Overrides, override.same)
		if r.CountDenied || !isAlike {
			return false
		}
	}
	return true
}

// mayShareCounter reports whether two rules may share a counter.
func (r *rule) mayShareCounter(other *rule) bool {
	return slices.EqualFunc(r.Key, other.Key, part.is) && r.quota.algorithm == other.quota.algorithm &&
		r.quota.per == other.quota.per && r.identity == other.identity
}

// clip makes text fit for a rule's name: printable, without space at its ends,
// at most size bytes long.
func clip(text string, size int) string {
	return printable.Cut(strings.TrimSpace(printable.Text(text)), size)
}

// document is the policy as it is written.
type document struct {
	Version int          `yaml:"version"`
	Domain  string       `yaml:"domain,omitempty"`
	Headers string       `yaml:"headers,omitempty"`
	Rules   []*yaml.Node `yaml:"rules"`
}

// asYAML is the policy's text. At its head are the notes that are not about one rule.
func (d *draft) asYAML(notes []note) []byte {
	var b bytes.Buffer
	b.WriteString(comment("Imported from "+d.from+". Read the comments: they say what differs.") + "\n")
	for _, n := range notes {
		if !n.ofRule {
			if n.Line == 0 {
				n.File = "" // the path tells which
			}
			b.WriteString(comment("- "+n.String()) + "\n")
		}
	}
	doc := document{Version: policy.Version, Domain: d.domain, Headers: d.headers}
	for i := range d.rules {
		doc.Rules = append(doc.Rules, d.rules[i].asYAML())
	}
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		panic(err) // texts, numbers and lists of them
	}
	return b.Bytes()
}

// asYAML is the rule with all its fields, below its comments.
func (r *rule) asYAML() *yaml.Node {
	f := r.fields
	f.Algorithm = r.quota.algorithm
	f.Limits = r.quota.asLimits()
	switch {
	case r.off:
		f.Mode = string(policy.ModeOff)
	case r.quota.shadow:
		f.Mode = string(policy.ModeShadow)
	default:
		f.EnforcePercent = r.quota.percent
	}
	n := encoded(f)
	var comments []string
	for _, c := range r.comments {
		comments = append(comments, comment(c))
	}
	n.HeadComment = strings.Join(comments, "\n")
	return n
}

// encoded is a value as YAML.
func encoded(v any) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
		panic(err) // texts, numbers and lists of them
	}
	return n
}

// flow is a value as YAML on one line.
func flow(v any) *yaml.Node {
	n := encoded(v)
	n.Style |= yaml.FlowStyle
	return n
}

const commentWidth = 94

// comment writes text as lines of a comment.
func comment(text string) string {
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
