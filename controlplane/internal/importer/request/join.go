package request

import (
	"maps"
	"strings"
)

// and is the match with the conditions of both. Of two conditions on one part it takes the values that fit both: of /a*
// and /a/b the path /a/b, of the hosts *.example and a.example the host a.example. Where there are none, or no list of
// patterns says which, it keeps the condition of m and is not ok.
func (m Match) and(other Match) (both Match, ok bool) {
	both = Match{}
	ok = true
	maps.Copy(both, m)
	for id, values := range other {
		common, isKnown := commonValues(id.kind, m[id], values)
		if isKnown && len(common) > 0 {
			both[id] = common
		} else {
			ok = false
		}
	}
	return both, ok
}

// IsApart reports whether no request fits both matches, as of the hosts a.example and b.example. A true answer is sure.
func (m Match) IsApart(other Match) bool {
	for id, values := range other {
		if common, isKnown := commonValues(id.kind, m[id], values); isKnown && len(common) == 0 {
			return true
		}
	}
	return false
}

// commonValues are the patterns for the values of a kind of part that fit one of each list; an empty list
// fits all. They are not known if no list of patterns says that.
func commonValues(kind PartKind, a, b []Pattern) (common []Pattern, isKnown bool) {
	if len(a) == 0 {
		return b, true
	}
	for _, p := range a {
		for _, q := range b {
			switch {
			case isValueWithin(kind, p, q):
				common = AppendNew(common, p)
			case isValueWithin(kind, q, p):
				common = AppendNew(common, q)
			case !isValueApart(kind, p, q):
				return nil, false
			}
		}
	}
	return common, true
}

// isValueWithin reports whether every value of a kind of part that fits p fits q. Hosts and addresses are
// compared as a match does: the text of a pattern may be *.a.example or a network.
func isValueWithin(kind PartKind, p, q Pattern) bool {
	switch kind {
	case KindHost:
		return strings.EqualFold(p.Text, q.Text) || IsHostBelow(p.Text, q.Text)
	case KindClientIP:
		narrow, _ := NetworkOf(p.Text)
		wide, _ := NetworkOf(q.Text)
		return wide.Bits() <= narrow.Bits() && wide.Overlaps(narrow)
	default:
		return p.TextWithin(q)
	}
}

// isValueApart reports whether no value of a kind of part fits both p and q. Of two hosts or networks, one is
// within the other or they are apart.
func isValueApart(kind PartKind, p, q Pattern) bool {
	switch kind {
	case KindHost, KindClientIP:
		return !isValueWithin(kind, p, q) && !isValueWithin(kind, q, p)
	default:
		return p.TextApart(q)
	}
}

// IsHostBelow reports whether every host of a name is one of another, wider name, as those of a.b.example and
// *.b.example are hosts of *.example. Hosts have no case.
func IsHostBelow(name, wider string) bool {
	name = strings.ToLower(name)
	wider = strings.ToLower(wider)
	end, isWildcard := strings.CutPrefix(wider, "*")
	return isWildcard && name != wider && strings.HasSuffix(strings.TrimPrefix(name, "*"), end)
}
