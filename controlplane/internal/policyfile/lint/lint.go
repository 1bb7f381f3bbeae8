// Package lint finds what is valid in a policy and perhaps not meant: rules that
// a client escapes, patterns that never match, limits that surprise.
//
// Its invariant: it refuses nothing, and looks at nothing in which the reader of
// shared/policy found a problem.
package lint

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/footprint"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Warning is one caution, with its place in the document.
type Warning struct {
	Line, Column  int
	Path, Message string
}

// warnBytes is how much memory a policy may use in one Envoy without a warning.
const warnBytes = 64 << 20

// maxCompared is how many patterns are compared to find overrides that can
// never match: those of some forty rules with policy.MaxOverrides each.
const maxCompared = 20 << 20

// Warnings returns the warnings about a policy in the order of the document.
// The policy is what was read of doc, with these problems.
func Warnings(doc *policy.Node, p *policy.Policy, problems []policy.Problem) []Warning {
	if n := len(problems); n > 0 && (len(p.Rules) == 0 || problems[n-1].Code == policy.MoreProblems) {
		return nil // there may be problems in any rule
	}
	l := &linter{broken: brokenPlaces(problems)}
	root := value{node: doc}
	rules := root.field("rules")
	for i := range p.Rules {
		l.rule(rules.item(i), &p.Rules[i])
	}
	if !l.broken["exempt"] {
		l.exemptions(root, p.Exempt)
	}
	if len(problems) == 0 {
		l.policy(root, p)
	}
	slices.SortStableFunc(l.warnings, func(a, b Warning) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return l.warnings
}

// brokenPlaces are the paths of all problems and of what is around them.
func brokenPlaces(problems []policy.Problem) map[string]bool {
	broken := map[string]bool{}
	for i := range problems {
		path := problems[i].Path
		switch problems[i].Code {
		case policy.RuleNameTwice, policy.CounterKey, policy.CounterWindows, policy.CounterCapacity, policy.LogsTooLong,
			policy.CounterScope, policy.CounterLease, policy.CounterLimits:
			continue // the rule is sound by itself
		default:
			broken[path] = true
		}
		for at := range len(path) {
			if path[at] == '.' || path[at] == '[' {
				broken[path[:at]] = true
			}
		}
	}
	return broken
}

// linter collects warnings.
type linter struct {
	broken   map[string]bool
	warnings []Warning
	compared int // patterns with others
}

func (l *linter) warn(v value, message string) {
	if len(l.warnings) < policy.MaxProblems {
		l.warnings = append(l.warnings, Warning{Line: v.node.Line, Column: v.node.Column, Path: v.path, Message: message})
	}
}

func (l *linter) policy(root value, p *policy.Policy) {
	rules := root.field("rules")
	if len(p.Rules) == 0 {
		l.warn(value{node: root.node, path: "rules"}, "there is none: every request is allowed")
	}
	l.quota(root, p)
	if p.Manage != nil {
		for i := range p.Rules {
			if isManaged(&p.Rules[i], p.Manage.Path) {
				l.warn(rules.item(i).field("match").field("paths"), "the rule applies to no request: those under "+
					quote(p.Manage.Path)+" are management requests, which no rule sees")
			}
		}
	}
	if m := footprint.Of(p); m.Bytes > warnBytes {
		l.warn(rules, "counters for "+strconv.FormatUint(m.Keys, 10)+" live keys take up to "+
			strconv.FormatUint(m.Bytes>>20, 10)+" MiB in each Envoy: lower capacity if fewer keys are live at a time")
	}
}

// isManaged reports whether a rule is for management requests alone: those are
// answered before any rule is asked.
func isManaged(r *policy.Rule, path string) bool {
	isOther := func(p policy.Pattern) bool {
		return p.Kind != policy.Exact && p.Kind != policy.Prefix || !strings.HasPrefix(p.Text, path)
	}
	return r.Mode != policy.ModeOff && len(r.Match.Paths) > 0 && !slices.ContainsFunc(r.Match.Paths, isOther)
}

// rule warns in the order in which a rule is read.
func (l *linter) rule(v value, r *policy.Rule) {
	key := v.field("key")
	for i := range r.Key {
		if at := key.item(i); r.Key[i].Kind == policy.KeyFirstOf && !l.broken[at.path] {
			l.neverChosen(at.field("first_of"), r.Key[i].Of)
		}
	}
	limits := v.field("limits")
	for i := range r.Limits {
		at := limits.item(i)
		if l.broken[at.path] {
			continue
		}
		l.limit(at, &r.Limits[i])
		if r.Limits[i].Elastic {
			l.warn(at.field("elastic"), "is deprecated, and here for policies of Python limits: a client that never pauses for "+
				policy.FormatDuration(r.Limits[i].PeriodNs)+" gets no new window; leave it out, or use sliding_window_log")
		}
	}
	overrides := v.field("overrides")
	for i := range r.Overrides {
		l.override(overrides.item(i), v.node, r.Key, &r.Overrides[i])
	}
	if !l.broken[overrides.path] {
		l.covered(overrides, r.Overrides)
		if names := r.OverrideNames(); len(names) > policy.MaxCountedNames {
			l.warn(overrides, "has "+strconv.Itoa(len(names))+" names, and metrics show the first "+strconv.Itoa(policy.MaxCountedNames)+
				": let overrides that belong together share a name")
		}
	}
	if l.broken[v.path] {
		return
	}
	l.bypassable(v, r)
	l.exemptions(v, r.Exempt)
	l.raised(overrides, r)
	l.cluster(v, r)
	if r.Mode != policy.ModeOff {
		l.unreachable(v, r)
		if len(r.Limits) > 0 {
			l.spellings(v.field("match").field("paths"), r.Match.Paths, "rule")
		}
		for i := range r.Costs {
			l.spellings(v.field("cost").item(i).field("match").field("paths"), r.Costs[i].Match.Paths, "cost")
		}
	}
}

// neverChosen warns of parts of a first_of behind one that every request has.
func (l *linter) neverChosen(v value, parts []policy.KeyPart) {
	always := ""
	for i := range parts {
		if always != "" {
			l.warn(v.item(i), "is never chosen: every request has "+always+", which comes first")
			continue
		}
		switch p := &parts[i]; p.Kind {
		case policy.KeyHost, policy.KeyMethod:
			always = p.Label()
		case policy.KeyPath:
			if p.Segment == 0 {
				always = p.Label()
			}
		default: // a request may lack it
		}
	}
}

// limit warns of a limit that does what it says, and perhaps not what its writer
// means.
func (l *linter) limit(v value, w *policy.Limit) {
	days := strconv.FormatInt(w.PeriodNs/86_400_000_000_000, 10)
	written, plain := v, days+"d"
	if v.node.Kind == policy.String {
		plain = strconv.FormatUint(uint64(w.Limit), 10) + "/" + plain
	} else {
		written = v.field("per")
	}
	for _, loose := range []string{"month", "year"} {
		if strings.Contains(strings.ToLower(written.node.Text), loose) {
			l.warn(written, "a "+loose+" has no one length: this counts as "+days+" days; write "+quote(plain)+" to be plain")
		}
	}
	if w.Algorithm == limit.SlidingWindowCounter && w.Limit == 1 {
		l.warn(v, "a sliding_window_counter of 1 lets two requests through across a boundary, "+
			"one late in a window and one early in the next: use sliding_window_log, which is exact")
	}
	if w.Fill() >= limit.MaxFillNs {
		l.warn(v, "the bucket takes more than 73 years to fill, and is remembered for 73 once its client has lost its place to others: lower burst")
	}
}

// bypassable warns of a rule that a client escapes by leaving something out.
func (l *linter) bypassable(v value, r *policy.Rule) {
	if r.MissingKey != policy.MissingSkip || r.Mode == policy.ModeOff || len(r.Key) == 0 {
		return
	}
	var names []string
	for i := range r.Key {
		if !isBypassable(&r.Key[i]) {
			return
		}
		names = append(names, leftOut(&r.Key[i])...)
	}
	l.warn(value{node: v.node, path: v.path + ".missing_key"}, "a client that leaves out "+strings.Join(names, ", ")+
		" escapes this rule: set missing_key to deny or share, or add client_ip to the key")
}

// isBypassable reports whether a client can leave the part out. A claim is one
// that it can: jwt_authn may let requests without a token pass, and in Istio
// does. Where it does not, missing_key: deny says the same and costs nothing.
func isBypassable(p *policy.KeyPart) bool {
	switch p.Kind {
	case policy.KeyHeader, policy.KeyQuery, policy.KeyCookie, policy.KeyJWT:
		return true
	case policy.KeyProperty:
		return isOfClient(p.Path)
	case policy.KeyFirstOf:
		return !slices.ContainsFunc(p.Of, func(of policy.KeyPart) bool { return !isBypassable(&of) })
	default: // every request has it
		return false
	}
}

// isOfClient reports whether an attribute is there only if the client sent it:
// a header, or a certificate of its own.
func isOfClient(path []string) bool {
	if len(path) < 2 {
		return false
	}
	switch path[0] + "." + path[1] {
	case "request.headers", "request.referer", "request.useragent",
		"connection.subject_peer_certificate", "connection.dns_san_peer_certificate",
		"connection.uri_san_peer_certificate", "connection.sha256_peer_certificate_digest":
		return true
	}
	return false
}

// leftOut names what a client leaves out to lack the part.
func leftOut(p *policy.KeyPart) (names []string) {
	switch p.Kind {
	case policy.KeyHeader:
		return []string{p.Name}
	case policy.KeyFirstOf:
		for i := range p.Of {
			names = append(names, leftOut(&p.Of[i])...)
		}
		return names
	default:
		return []string{p.Label()}
	}
}

// value is a value of the document and its path.
type value struct {
	node *policy.Node
	path string
}

// field is the value of a field, or its object where the field is absent.
func (v value) field(name string) value {
	at := value{node: v.node, path: policy.Join(v.path, name)}
	if n := v.node.Member(name); n != nil {
		at.node = n
	}
	return at
}

func (v value) item(i int) value {
	return value{node: v.node.Items[i], path: v.path + "[" + strconv.Itoa(i) + "]"}
}

// quote is s in quotes, cut where it is too long for a message.
func quote(s string) string { return strconv.Quote(policy.Clip(s)) }
