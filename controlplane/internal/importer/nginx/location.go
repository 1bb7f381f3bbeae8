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

// readLocations adds the locations of a block to its scope. The block is besideRegex if a location around it has
// expressions beside it: nginx tries those in the block first, which no match can say. Here that is so in the second
// location, and nginx tries b$ before a$:
//
//	location ~ a$ { ... }
//	location / { location ~ b$ { ... } }
func (n *reader) readLocations(s *scope, block []*nginxconf.Directive, besideRegex bool) {
	list := n.locationsIn(s, block)
	for _, l := range list {
		if l.isRegex() && besideRegex {
			l.fits.CannotMatch("nginx tries it before the expressions of the locations around it")
		}
		l.refuseHoleInPrefix(list)
	}
	for i, l := range list {
		for j, o := range list {
			if i != j && !o.path.Apart(l.path) && o.winsOver(l, j < i) {
				l.winners = append(l.winners, o.scope)
			}
		}
	}
	hasRegex := slices.ContainsFunc(list, (*location).isRegex)
	for _, l := range list {
		s.inner = append(s.inner, l.scope)
		n.readLocations(l.scope, l.block, besideRegex || hasRegex && l.modifier == "")
	}
}

// locationsIn are the locations of a block, each by itself. No client asks for one such as @fallback.
func (n *reader) locationsIn(s *scope, block []*nginxconf.Directive) (list []*location) {
	blocks := nginxconf.Named(block, "location")
	if n.areTooMany(blocks) {
		return nil
	}
	for _, d := range blocks {
		modifier, text := splitLocation(d)
		if !strings.HasPrefix(text, "@") {
			c := n.newScope("location "+strings.Join(d.Args, " "), d.Block, s.limits)
			l := &location{scope: c, block: d.Block, modifier: modifier, text: text}
			l.selectPath()
			list = append(list, l)
		}
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

func (l *location) isRegex() bool { return strings.HasPrefix(l.modifier, "~") }

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

// refuseHoleInPrefix finds what no exemption can say: an expression that holds below a prefix with ^~ again, because a
// longer prefix has no ^~. Beside ^~ /s and /s/t the expression ~ x$ holds for /s/tx, but not for /sx. One such hole is
// enough.
func (l *location) refuseHoleInPrefix(list []*location) {
	if !l.isRegex() {
		return
	}
	for _, wide := range list {
		if wide.modifier != "^~" || wide.path.Apart(l.path) {
			continue
		}
		for _, narrow := range list {
			if narrow.modifier == "" && strings.HasPrefix(narrow.text, wide.text) {
				l.fits.CannotMatch("it holds for the location " + narrow.text + ", but not for the rest of ^~ " + wide.text)
				return
			}
		}
	}
}

// selectPath selects the requests whose path fits the location.
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
