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
	holes := holesIn(list)
	for i, l := range list {
		if l.isRegex() {
			l.refuseRegex(besideRegex, holes)
		}
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
			c := n.newScope("location "+strings.Join(d.Args, " "), d.Block, s.passed)
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

func (l *location) isRegex() bool { return strings.HasPrefix(l.modifier, "~") }

// hole is where expressions hold again below a prefix with ^~: a longer prefix without it. Beside ^~ /s and /s/t the
// expression ~ x$ holds for /s/tx, but not for /sx. No exemption can say that.
type hole struct{ prefix, around *location }

// holesIn are the locations with ^~ that have holes, each with the first of them.
func holesIn(list []*location) (holes []hole) {
	for _, wide := range list {
		if wide.modifier != "^~" {
			continue
		}
		isHole := func(l *location) bool { return l.modifier == "" && strings.HasPrefix(l.text, wide.text) }
		if i := slices.IndexFunc(list, isHole); i >= 0 {
			holes = append(holes, hole{prefix: list[i], around: wide})
		}
	}
	return holes
}

// refuseRegex says why no selection has the requests of a location with an expression, if none has: nginx tries the
// expressions of locations around it later, or there are holes in which the expression holds. One hole is enough.
func (l *location) refuseRegex(besideRegex bool, holes []hole) {
	if besideRegex {
		l.fits.CannotMatch("nginx tries it before the expressions of the locations around it")
	}
	isBelow := func(h hole) bool { return !h.around.path.Apart(l.path) }
	if i := slices.IndexFunc(holes, isBelow); i >= 0 {
		h := holes[i]
		l.fits.CannotMatch("it holds for the location " + h.prefix.text + ", but not for the rest of ^~ " +
			h.around.text)
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
