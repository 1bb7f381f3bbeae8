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
	hasHole  bool              // with ^~: see turnOffInHoles
}

// readLocations are the scopes of the locations of a block.
func (n *reader) readLocations(block []*nginxconf.Directive, around map[module]limitSet) []innerScope {
	list := n.locationsIn(block)
	turnOffInHoles(list)
	var scopes []*scope
	for _, l := range list {
		s := n.readBody(l.body, around, l.fits)
		s.location = l
		scopes = append(scopes, s)
	}
	for i, l := range list {
		for k, other := range list {
			if l.modifier == "" && other.isRegex() && other.winsOver(l) {
				turnOffBoth(scopes[k], scopes[i].inner)
			}
		}
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

// turnOffInHoles turns off the expressions that hold for some of the requests of a location with ^~: for those below a
// longer location without it, its hole. No exemption says that. One hole is enough. An example:
//
//	location ^~ /s { }
//	location /s/t { }    the hole
//	location ~ x$ { }    off: it holds for /s/tx, but not for /sx
func turnOffInHoles(list []*location) {
	for _, wide := range list {
		isHole := func(l *location) bool {
			return wide.modifier == "^~" && l.modifier == "" && strings.HasPrefix(l.text, wide.text)
		}
		i := slices.IndexFunc(list, isHole)
		if i < 0 {
			continue
		}
		wide.hasHole = true
		for _, l := range list {
			if l.isRegex() && !l.fits.IsOff() && !l.path.Apart(wide.path) {
				l.fits.TurnOff(request.NoMatch("it holds for the location " + list[i].text + ", but not for the rest of ^~ " +
					wide.text))
			}
		}
	}
}

// turnOffBoth turns off an expression beside a location, and what nginx tries before it of the locations within that
// one: no match says which of the two it takes. An example:
//
//	location ~ a { }                      off
//	location / { location ~ b$ { } }      b$ is off: nginx takes it for /ab
func turnOffBoth(regex *scope, within []innerScope) {
	for _, c := range within {
		isFirst := c.location.isRegex() || c.location.modifier == "="
		if isFirst && !c.location.path.Apart(regex.location.path) {
			c.turnOffOnce("nginx tries it before the expressions of the locations around it")
			regex.turnOffOnce("nginx tries the " + c.label + " before it")
		}
		turnOffBoth(regex, c.inner)
	}
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
		return l.modifier == "^~" && !l.hasHole
	}
	return len(l.text) > len(other.text)
}
