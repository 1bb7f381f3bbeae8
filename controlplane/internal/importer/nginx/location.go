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
	fits     request.Selection // the requests that fit: off if RE2 has no such expression
}

// readLocations are the scopes of the locations of a block. The block is besideRegex if a location around it has
// expressions beside it: nginx tries those in the block first, which no match can say. Here that is so in the second
// location, and nginx tries b$ before a$:
//
//	location ~ a$ { ... }
//	location / { location ~ b$ { ... } }
func (n *reader) readLocations(
	block []*nginxconf.Directive, around map[module]limitSet, besideRegex bool,
) []innerScope {
	list := n.locationsIn(block)
	holes := holesIn(list)
	hasRegex := slices.ContainsFunc(list, (*location).isRegex)
	var scopes []*scope
	for _, l := range list {
		innerBesideRegex := besideRegex || hasRegex && l.modifier == ""
		scopes = append(scopes, n.readBody(l.body, around, l.selection(besideRegex, holes), innerBesideRegex))
	}
	return beside(scopes, func(one, other int) bool { return list[one].winsOver(list[other]) })
}

// locationsIn are the locations of a block. No client asks for one such as @fallback or api: each path begins with /.
func (n *reader) locationsIn(block []*nginxconf.Directive) (list []*location) {
	blocks := nginxconf.Named(block, "location")
	if n.refuseTooMany(blocks) {
		return nil
	}
	for i, d := range blocks {
		modifier, text := splitLocation(d)
		label := "location " + strings.Join(d.Args, " ")
		l := &location{body: newBody(label, d.Block), index: i, modifier: modifier, text: text}
		l.path, l.fits = requestsOf(modifier, text)
		if text == "" || text[0] == '/' || l.isRegex() {
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
		fits.TurnOff(request.NoMatch("RE2 has no expression like " + text))
	case path != request.AnyPath:
		fits.Require(request.FullPath.Value(), path)
	}
	return path, fits
}

func (l *location) isRegex() bool { return l.modifier == "~" || l.modifier == "~*" }

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

// selection is for the requests that nginx gives to the location if no other one wins. No match has those of an
// expression which nginx tries before the expressions of locations around it, or which holds in a hole. One hole is
// enough.
func (l *location) selection(besideRegex bool, holes []hole) request.Selection {
	s := l.fits
	if !l.isRegex() {
		return s
	}
	if besideRegex {
		s.TurnOff(request.NoMatch("nginx tries it before the expressions of the locations around it"))
	}
	isBelow := func(h hole) bool { return !h.around.path.Apart(l.path) }
	if i := slices.IndexFunc(holes, isBelow); i >= 0 {
		h := holes[i]
		s.TurnOff(request.NoMatch("it holds for the location " + h.prefix.text + ", but not for the rest of ^~ " +
			h.around.text))
	}
	return s
}

// winsOver reports whether nginx takes the location for requests that fit both: an exact one, then
// the longest prefix if it has ^~, then the first expression, then the longest prefix.
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
		return l.modifier == "^~"
	}
	return len(l.text) > len(other.text)
}
