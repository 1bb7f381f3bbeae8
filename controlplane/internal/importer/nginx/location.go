package nginx

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// location is one location of nginx.
type location struct {
	*scope
	block    []*nginxconf.Directive
	modifier string // =, ^~, ~, ~* or empty
	text     string
	path     request.Pattern
}

// readLocation reads what a location says of its requests. The modifier may be written with the text: ~\.php$.
func readLocation(d *nginxconf.Directive) *location {
	l := &location{block: d.Block, modifier: d.Arg(0), text: d.Arg(1)}
	if len(d.Args) == 1 {
		l.text = d.Arg(0)
		l.modifier = ""
		for _, modifier := range []string{"=", "^~", "~*", "~"} {
			if text, ok := strings.CutPrefix(l.text, modifier); ok {
				l.modifier = modifier
				l.text = text
				break
			}
		}
	}
	return l
}

func (l *location) isRegex() bool { return strings.HasPrefix(l.modifier, "~") }

// readLocations adds the locations of a block to its scope.
func (n *reader) readLocations(s *scope, block []*nginxconf.Directive) {
	var list []*location
	blocks := nginxconf.Named(block, "location")
	if n.areTooMany(blocks) {
		return
	}
	for _, d := range blocks {
		l := readLocation(d)
		if strings.HasPrefix(l.text, "@") { // no client asks for it
			continue
		}
		l.scope = n.newScope(s, "location "+strings.Join(d.Args, " "), d.Block)
		l.selectPath()
		if s.besideRegex && l.isRegex() {
			l.fits.CannotMatch("nginx tries it before the expressions of the locations around it")
		}
		list = append(list, l)
	}
	hasRegex := slices.ContainsFunc(list, (*location).isRegex)
	for i, l := range list {
		for j, o := range list {
			if i != j && !o.path.Apart(l.path) && o.winsOver(l, j < i) {
				l.winners = append(l.winners, o.scope)
			}
		}
		l.checkPrefixes(list)
		l.besideRegex = s.besideRegex || hasRegex && l.modifier == ""
		s.inner = append(s.inner, l.scope)
		n.readLocations(l.scope, l.block)
	}
}

// winsOver reports whether nginx takes the location for the requests that fit both: an exact one, then
// the longest prefix if it has ^~, then the first expression, then the longest prefix.
func (l *location) winsOver(other *location, isFirst bool) bool {
	switch {
	case l.modifier == "=" || other.modifier == "=":
		return l.modifier == "="
	case l.isRegex() && other.isRegex():
		return isFirst
	case l.isRegex():
		return other.modifier != "^~"
	case other.isRegex():
		return l.modifier == "^~"
	}
	return len(l.text) > len(other.text)
}

// checkPrefixes finds what no exemption can say: an expression that holds below a prefix with ^~ again,
// because a longer prefix has no ^~.
func (l *location) checkPrefixes(list []*location) {
	if !l.isRegex() {
		return
	}
	for _, wide := range list {
		for _, narrow := range list {
			isBelow := narrow.modifier == "" && strings.HasPrefix(narrow.text, wide.text)
			if wide.modifier == "^~" && isBelow && !wide.path.Apart(l.path) {
				l.fits.CannotMatch("it holds for the location " + narrow.text + ", but not for the rest of ^~ " + wide.text)
			}
		}
	}
}

// selectPath selects the requests of a location.
func (l *location) selectPath() {
	switch {
	case l.isRegex():
		var ok bool
		l.path, ok = request.Searched(l.text, l.modifier == "~*")
		if !ok {
			l.fits.CannotMatch("RE2 has no expression like " + l.text)
			return
		}
	case l.modifier == "=":
		l.path = request.Exact(l.text)
	default:
		l.path = request.Prefix(l.text, false)
	}
	if l.path != request.AnyPath {
		l.fits.Match = request.FullPath.Matching(l.path)
	}
}
