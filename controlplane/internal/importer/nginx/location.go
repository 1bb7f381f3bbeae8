package nginx

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// location is one location of nginx, as it is written.
type location struct {
	body
	index    int    // beside others, in the order of the file
	modifier string // =, ^~, ~, ~* or empty
	text     string
	path     request.Pattern   // of the paths that fit, to compare with others: any path if RE2 has no such expression
	fits     request.Selection // the requests that fit: off if no match says which
	hole     *location         // beside it: see holeIn
}

// readLocations are the scopes of the locations of a block, in which these limits hold. The expressions are those
// beside the locations around the block that nginx tries after those within it: see isBetween.
func (n *reader) readLocations(list []*location, around map[module]limitSet, expressions []*location) []innerScope {
	var scopes []*scope
	for _, l := range list {
		within := slices.Clip(expressions)
		for _, other := range list {
			if other.isBetween(l) {
				within = append(within, other)
			}
		}
		scopes = append(scopes, n.readBody(l.body, around, l.selection(list, expressions), within))
	}
	return beside(scopes, func(one, other int) bool { return list[one].winsOver(list[other]) })
}

// locationsIn are the locations of a block, with those within them. No client asks for one such as @fallback or api:
// each path begins with /.
func (n *reader) locationsIn(block []*nginxconf.Directive) (list []*location) {
	blocks := nginxconf.Named(block, "location")
	if n.refuseTooMany(blocks) {
		return nil
	}
	for i, d := range blocks {
		modifier, text := splitLocation(d)
		label := "location " + strings.Join(d.Args, " ")
		l := &location{body: n.newBody(label, d.Block), index: i, modifier: modifier, text: text}
		l.path, l.fits = requestsOf(modifier, text)
		if text == "" || text[0] == '/' || l.isRegex() {
			list = append(list, l)
		}
	}
	for _, l := range list {
		l.hole = l.holeIn(list)
	}
	return list
}

// splitLocation is what a location says of its requests. The modifier may be written with the text: ~\.php$.
func splitLocation(d *nginxconf.Directive) (modifier, text string) {
	if len(d.Args) != 1 {
		return d.Arg(0), d.Arg(1)
	}
	for _, modifier := range []string{"=", "^~", "~*", "~"} {
		if text, ok := strings.CutPrefix(d.Arg(0), modifier); ok {
			return modifier, text
		}
	}
	return "", d.Arg(0)
}

// requestsOf are the pattern of the paths that fit a location, and the requests to them.
func requestsOf(modifier, text string) (path request.Pattern, fits request.Selection) {
	isKnown := true
	switch modifier {
	case "~", "~*":
		path, isKnown = request.Searched(text, modifier == "~*")
	case "=":
		path = request.Exact(text)
	default:
		path = request.Prefix(text, false)
	}
	switch {
	case !isKnown:
		path = request.Anything
		fits.TurnOff(request.NoMatch("RE2 has no expression like " + text))
	case path != request.AnyPath:
		fits.Require(request.FullPath.Value(), path)
	}
	return path, fits
}

func (l *location) isRegex() bool { return l.modifier == "~" || l.modifier == "~*" }

// holeIn is the hole of a location with ^~ among those beside it: the first longer location without it, below which
// the expressions hold again. One is enough.
func (l *location) holeIn(beside []*location) *location {
	isHole := func(other *location) bool {
		return l.modifier == "^~" && other.modifier == "" && strings.HasPrefix(other.text, l.text)
	}
	if i := slices.IndexFunc(beside, isHole); i >= 0 {
		return beside[i]
	}
	return nil
}

// selection is for the requests that fit the location, if a match can say for which of them nginx tries it.
func (l *location) selection(beside, expressions []*location) request.Selection {
	s := l.fits
	if why := l.whyNoMatch(beside, expressions); why != "" && !s.IsOff() {
		s.TurnOff(request.NoMatch(why))
	}
	return s
}

// whyNoMatch is why no match can say for which requests nginx tries the location; empty if one can. Examples:
//
//	location ^~ /s { }
//	location /s/t { }                     the hole of ^~ /s
//	location ~ x$ { }                     off: nginx tries it for /s/tx, but not for /sx
//
//	location ~ a { }                      off, as nginx takes b$ for /ab
//	location / { location ~ b$ { } }      b$ is off too
func (l *location) whyNoMatch(beside, expressions []*location) string {
	for _, other := range beside {
		if l.isRegex() && other.hole != nil && !l.path.Apart(other.path) {
			return "it holds for the location " + other.hole.text + ", but not for the rest of ^~ " + other.text
		}
	}
	for _, other := range beside {
		if l.isBetween(other) {
			if first := other.firstWithin(l); first != nil {
				return "nginx tries the " + first.label + " before it"
			}
		}
	}
	if slices.ContainsFunc(expressions, l.isBefore) {
		return "nginx tries it before the expressions of the locations around it"
	}
	return ""
}

// isBetween reports whether nginx tries the expression after those within a location beside it, and before that one.
func (l *location) isBetween(other *location) bool {
	return l.isRegex() && other.modifier == "" && l.winsOver(other)
}

// firstWithin is the first location within this one that isBefore an expression beside it; nil if there is none.
func (l *location) firstWithin(expression *location) *location {
	for _, within := range l.locations {
		if within.isBefore(expression) {
			return within
		}
		if first := within.firstWithin(expression); first != nil {
			return first
		}
	}
	return nil
}

// isBefore reports whether nginx takes the location for some requests that fit an expression around it.
func (l *location) isBefore(expression *location) bool {
	return (l.isRegex() || l.modifier == "=") && !l.path.Apart(expression.path)
}

// winsOver reports whether nginx takes the location for requests that fit both: an exact one, then the longest prefix
// if it has ^~, then the first expression, then the longest prefix. Over the expressions in its hole it does not: they
// have some of its requests.
func (l *location) winsOver(other *location) bool {
	switch {
	case l.path.Apart(other.path):
		return false
	case l.modifier == "=" || other.modifier == "=":
		return l.modifier == "="
	case l.isRegex() && other.isRegex():
		return l.index < other.index
	case l.isRegex():
		return other.modifier != "^~"
	case other.isRegex():
		return l.modifier == "^~" && l.hole == nil
	}
	return len(l.text) > len(other.text)
}
