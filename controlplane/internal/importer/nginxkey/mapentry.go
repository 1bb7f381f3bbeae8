package nginxkey

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// mapEntry has the patterns of one value, as nginx writes them.
type mapEntry struct {
	kind     entryKind
	patterns []string
	value    string
}

// entryKind is the kind of an entry's patterns. nginx tries the kinds in this order.
type entryKind uint8

const (
	entryNetwork entryKind = iota
	entryText
	entryHosts
	entryRegex
)

// entryKinds say what each kind of patterns does. Of entries of one kind nginx tries the narrower first, and else those
// that come first in the file.
//
//	kind          written as          tried first   parts over which a match can say it
//	entryNetwork  10.0.0.0/8 of geo   the longest   the client's address
//	entryText     gold, in any case   as written    all of a match
//	entryHosts    *.a.example         the longest   the host
//	entryRegex    ~^vip or ~*^vip     as written    headers and the path
var entryKinds = [...]struct {
	// narrowness is more for what nginx tries first.
	narrowness func(pattern string) int
	// fits reports whether a text fits a pattern. It is not ok if the import cannot read the pattern, as an expression
	// that RE2 does not have.
	fits func(pattern, text string) (fits, ok bool)
	// over is the pattern over a part of the request. It is not ok if no match can say it.
	over func(p request.Part, pattern string) (v request.Pattern, ok bool)
}{
	entryNetwork: {networkBits, networkFits, networkOver},
	entryText:    {asWritten, textFits, textOver},
	entryHosts:   {hostsLength, hostsFit, hostsOver},
	entryRegex:   {asWritten, regexFits, regexOver},
}

// kindOfEntry is the kind of an entry by how it is written: 10.0.0.0/8 of a geo, gold, *.a.example or ~^vip.
func kindOfEntry(text string, isGeo, hasHosts bool) entryKind {
	switch {
	case isGeo:
		return entryNetwork
	case strings.HasPrefix(text, "~"):
		return entryRegex
	case hasHosts && strings.ContainsAny(text, "*"), hasHosts && strings.HasPrefix(text, "."):
		return entryHosts
	}
	return entryText
}

// selects are the requests whose part fits the entry. Those that have the header and those that lack it need a
// selection each.
func (e *mapEntry) selects(p request.Part) []request.Selection {
	var list []request.Pattern
	for _, text := range e.patterns {
		v, ok := entryKinds[e.kind].over(p, text)
		if !ok {
			var s request.Selection
			s.CannotMatch("a map looks up the " + p.String() + " " + text)
			return []request.Selection{s}
		}
		list = append(list, v)
	}
	if p.Kind == request.KindHeader {
		return selectByHeader(p, list)
	}
	return []request.Selection{{Match: p.Matching(list...)}}
}

// selectByHeader are the requests whose header fits one of the patterns. To nginx a missing header is the empty text.
// To a policy it is not: only Absent fits it.
func selectByHeader(header request.Part, list []request.Pattern) []request.Selection {
	fitsEmpty := slices.ContainsFunc(list, func(v request.Pattern) bool { return v.Matches("") })
	if len(list) > 1 { // a match has one pattern for a header
		var all []string
		for _, v := range list {
			all = append(all, "(?:"+v.Regexp()+")")
		}
		list = []request.Pattern{request.Expression(strings.Join(all, "|"))}
	}
	selections := []request.Selection{{Match: header.Matching(list...)}}
	if fitsEmpty {
		selections = append(selections, request.Selection{Match: header.Matching(request.Absent)})
	}
	return selections
}

func asWritten(string) int { return 0 }

func networkBits(pattern string) int {
	network, _ := request.NetworkOf(pattern)
	return network.Bits()
}

func networkFits(pattern, text string) (fits, ok bool) {
	network, ok := request.NetworkOf(pattern)
	address, isAddress := request.NetworkOf(text)
	if !isAddress {
		address, _ = request.NetworkOf("255.255.255.255") // what nginx takes for it
	}
	return ok && network.Contains(address.Addr()), ok
}

func networkOver(p request.Part, pattern string) (v request.Pattern, ok bool) {
	network, err := netip.ParsePrefix(pattern)
	if err != nil {
		one, isAddress := request.NetworkOf(pattern)
		return request.Exact(one.Addr().String()), isAddress && p.Kind == request.KindClientIP
	}
	return request.Exact(network.Masked().String()), p.Kind == request.KindClientIP
}

// A text may begin with a backslash, so that it is none of the other kinds.
func textFits(pattern, text string) (fits, ok bool) {
	return strings.EqualFold(strings.TrimPrefix(pattern, `\`), text), true
}

// No other part than a header may be empty.
func textOver(p request.Part, pattern string) (v request.Pattern, ok bool) {
	text := strings.TrimPrefix(pattern, `\`)
	v = request.Text(text, p.Kind == request.KindHeader || p.Kind == request.KindPath)
	_, ok = request.Match{}.TryRequire(p.Compared(), v)
	return v, ok && (text != "" || p.Kind == request.KindHeader)
}

func hostsLength(pattern string) int { return len(pattern) }

func hostsFit(pattern, text string) (fits, ok bool) {
	return request.IsHostBelow(text, pattern), request.IsHostOrWildcard(pattern)
}

func hostsOver(p request.Part, pattern string) (v request.Pattern, ok bool) {
	ok = p.Kind == request.KindHost && request.IsHostOrWildcard(pattern)
	return request.Exact(strings.ToLower(pattern)), ok
}

// splitRegex is the expression of ~^vip or ~*^vip. The second ignores the case.
func splitRegex(pattern string) (text string, ignoreCase bool) {
	if text, ignoreCase := strings.CutPrefix(pattern, "~*"); ignoreCase {
		return text, true
	}
	return strings.TrimPrefix(pattern, "~"), false
}

func regexFits(pattern, text string) (fits, ok bool) {
	re, ok := request.Searched(splitRegex(pattern))
	return re.Matches(text), ok
}

func regexOver(p request.Part, pattern string) (v request.Pattern, ok bool) {
	v, ok = request.Searched(splitRegex(pattern))
	return v, ok && (p.Kind == request.KindHeader || p.Kind == request.KindPath)
}
