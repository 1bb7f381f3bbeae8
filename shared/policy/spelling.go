package policy

import "strings"

// spellings warns of exact paths that a client can spell in a way that the rule
// does not match, and its upstream may take for the same: no proxy makes those
// one.
func (r *reader) spellings(v value, rule *Rule) {
	if rule.Mode == ModeOff || len(rule.Limits) == 0 {
		return
	}
	paths := fieldAt(fieldAt(v, "match"), "paths")
	for i, p := range rule.Match.Paths {
		if p.Kind != Exact || strings.HasSuffix(p.Text, "/") || !strings.HasPrefix(p.Text, "/") {
			continue
		}
		var missing []string
		for _, behind := range []string{"/", ";"} {
			if !r.anyMatches(rule.Match.Paths, p.Text+behind) {
				missing = append(missing, quote(p.Text+behind+"*"))
			}
		}
		if r.compared > maxCompared || len(r.warnings) == maxProblems {
			return
		}
		if len(missing) > 0 {
			r.warn(paths.item(i, shape{}), "many an upstream takes "+quote(p.Text+"/")+" and "+quote(p.Text+";a=1")+
				" for this path, and the rule does not: add "+strings.Join(missing, " and ")+" where yours does")
		}
	}
}

func (r *reader) anyMatches(patterns []Pattern, path string) bool {
	for i := range patterns {
		r.compared++
		if p := &patterns[i]; p.Kind == Prefix && strings.HasPrefix(path, p.Text) || p.Kind == Regexp && p.Automaton.Match(path) {
			return true
		}
	}
	return false
}
