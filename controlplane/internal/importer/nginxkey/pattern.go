package nginxkey

import (
	"net/netip"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// pattern is what an entry of a map or a geo looks up. Its types, and over which parts of a request a match can say
// them:
//
//	networkPattern  10.0.0.0/8 of geo   the client's address
//	textPattern     gold, in any case   all parts of a match
//	hostsPattern    *.a.example         the host, headers and the path
//	regexPattern    ~^vip or ~*^vip     headers and the path
type pattern interface {
	kind() patternKind
	// length is more for what nginx tries first of one kind. Else it goes by the order of the file.
	length() int
	// written is the pattern as the file has it.
	written() string
	// matches reports whether a text matches. It is not ok if the import cannot read the pattern, as an expression that
	// RE2 does not have.
	matches(text string) (matches, ok bool)
	// fitsNone reports whether no request has a value that matches.
	fitsNone(of request.Value) bool
	// over is the pattern for a value of the request. It is not ok if the import cannot read the pattern, or if the
	// policy compares something else.
	over(of request.Value) (p request.Pattern, ok bool)
}

// patternKind is a number for each type of pattern. nginx tries the lower ones first.
type patternKind uint8

const (
	ofNetwork patternKind = iota
	ofText
	ofHosts
	ofRegex
)

// patternOf is a pattern by how it is written.
func patternOf(text string, isGeo, hasHosts bool) pattern {
	switch {
	case isGeo:
		return networkPattern(text)
	case strings.HasPrefix(text, "~"):
		return regexPattern(text)
	case hasHosts && strings.ContainsAny(text, "*"), hasHosts && strings.HasPrefix(text, "."):
		return hostsPattern(text)
	}
	return textPattern(text)
}

// networkPattern is 10.0.0.0/8 of a geo.
type networkPattern string

func (p networkPattern) kind() patternKind { return ofNetwork }

func (p networkPattern) length() int {
	network, _ := request.NetworkOf(string(p))
	return network.Bits()
}

func (p networkPattern) written() string { return string(p) }

func (p networkPattern) matches(text string) (matches, ok bool) {
	_, ok = request.NetworkOf(string(p))
	if _, err := netip.ParseAddr(text); err != nil {
		text = "255.255.255.255" // what nginx takes for it
	}
	return request.IsNetworkWithin(text, string(p)), ok
}

func (p networkPattern) fitsNone(request.Value) bool { return false }

func (p networkPattern) over(of request.Value) (network request.Pattern, ok bool) {
	network, ok = request.NetworkPattern(string(p))
	return network, ok && of.Part.Kind == request.KindClientIP
}

// textPattern is gold or \~gold: a backslash at its begin says that it is a text, and is no part of it.
type textPattern string

func (p textPattern) kind() patternKind { return ofText }
func (p textPattern) length() int       { return 0 }
func (p textPattern) written() string   { return string(p) }
func (p textPattern) text() string      { return strings.TrimPrefix(string(p), `\`) }

func (p textPattern) matches(text string) (matches, ok bool) {
	return strings.EqualFold(p.text(), text), true
}

// No client's address is localhost or 10.0.0.1/32, as nginx compares texts, in any case.
func (p textPattern) fitsNone(of request.Value) bool {
	return of.IsNever(request.Exact(strings.ToLower(p.text())))
}

// No other part than a header may be empty.
func (p textPattern) over(of request.Value) (text request.Pattern, ok bool) {
	isHeader := of.Part.Kind == request.KindHeader
	return request.Text(p.text(), mustIgnoreCase(of)), p.text() != "" || isHeader
}

// mustIgnoreCase reports whether a pattern must say to ignore the case of the value. No map of nginx compares texts and
// names of hosts by case, and a match compares headers and the path by it.
func mustIgnoreCase(of request.Value) bool {
	return of.Part.Kind == request.KindHeader || of.Part.Kind == request.KindPath
}

// hostsPattern is *.a.example of a map with hostnames.
type hostsPattern string

func (p hostsPattern) kind() patternKind { return ofHosts }
func (p hostsPattern) length() int       { return len(p) }
func (p hostsPattern) written() string   { return string(p) }

func (p hostsPattern) matches(text string) (matches, ok bool) {
	_, ok = request.HostPattern(string(p))
	return request.IsHostBelow(text, string(p)), ok
}

func (p hostsPattern) fitsNone(request.Value) bool { return false }

func (p hostsPattern) over(of request.Value) (below request.Pattern, ok bool) {
	_, ok = request.HostPattern(string(p))
	end := strings.ToLower(strings.TrimPrefix(string(p), "*"))
	return request.Suffix(end, mustIgnoreCase(of)), ok
}

// regexPattern is ~^vip or ~*^vip. The second ignores the case.
type regexPattern string

func (p regexPattern) kind() patternKind { return ofRegex }
func (p regexPattern) length() int       { return 0 }
func (p regexPattern) written() string   { return string(p) }

func (p regexPattern) matches(text string) (matches, ok bool) {
	re, ok := p.searched()
	return re.Matches(text), ok
}

func (p regexPattern) fitsNone(request.Value) bool { return false }

func (p regexPattern) over(request.Value) (re request.Pattern, ok bool) { return p.searched() }

func (p regexPattern) searched() (re request.Pattern, ok bool) {
	if text, ignoreCase := strings.CutPrefix(string(p), "~*"); ignoreCase {
		return request.Searched(text, true)
	}
	return request.Searched(strings.TrimPrefix(string(p), "~"), false)
}
