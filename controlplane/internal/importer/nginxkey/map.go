package nginxkey

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// mapping is what a map or a geo makes of a source. An example:
//
//	map $http_x_plan $counted { gold ""; staff all; default $binary_remote_addr; }
//
// Its source is $http_x_plan. It has an entry for the text gold and one for staff, whose values are empty and
// all, and the other value is $binary_remote_addr.
type mapping struct {
	source  string
	entries []mapEntry // nginx takes the first that fits
	other   string     // the value if none fits
	why     whyOff
}

// Read reads a map or a geo.
func (v *Variables) Read(d *nginxconf.Directive) {
	if len(d.Args) == 0 {
		v.Fail(source.PlaceOf(d), "needs the variable that it makes, such as $plan")
		return
	}
	name := strings.TrimPrefix(d.Arg(len(d.Args)-1), "$")
	isGeo := d.Name == "geo"
	m := mapping{source: d.Arg(0)}
	if isGeo && len(d.Args) < 2 {
		m.source = "$remote_addr"
	}
	hasHosts := len(nginxconf.Named(d.Block, "hostnames")) > 0
	for _, e := range d.Block {
		switch value := e.Arg(0); {
		case e.Name == "default":
			m.other = value
		case e.Name == "include":
			m.why = whyOff("The file " + value + " is not here, which $" + name + " is made of.")
		case isGeo && (e.Name == "ranges" || e.Name == "delete"):
			m.why = whyOff("The import does not read " + e.Name + " of geo $" + name + ".")
		case isGeo && strings.HasPrefix(e.Name, "proxy"):
			v.Note(source.PlaceOf(e), "Envoy finds the client's address by its own settings: set them to the same")
		case e.Name == "hostnames" || e.Name == "volatile":
		default:
			m.entries = append(m.entries, mapEntry{kindOfEntry(e.Name, isGeo, hasHosts), []string{e.Name}, value})
		}
	}
	if m.looksUp("binary_remote_addr") && len(m.entries) > 0 {
		m.why = "The bytes of $binary_remote_addr fit no text: a map or a geo looks up $remote_addr."
	}
	slices.SortStableFunc(m.entries, func(a, b mapEntry) int {
		if a.kind != b.kind {
			return cmp.Compare(a.kind, b.kind)
		}
		narrowness := entryKinds[a.kind].narrowness
		return narrowness(b.patterns[0]) - narrowness(a.patterns[0])
	})
	m.merge()
	v.byName[strings.ToLower(name)] = m
}

// looksUp reports whether the source is a variable of nginx.
func (m *mapping) looksUp(name string) bool {
	return strings.EqualFold(strings.Trim(m.source, "${}"), name)
}

// merge joins entries that follow each other and are of one kind and value: among them the order makes no difference.
func (m *mapping) merge() {
	var list []mapEntry
	for _, e := range m.entries {
		last := len(list) - 1
		if last >= 0 && list[last].kind == e.kind && list[last].value == e.value {
			list[last].patterns = append(list[last].patterns, e.patterns...)
		} else {
			list = append(list, e)
		}
	}
	m.entries = list
}

// mapped are the forms of what a map or a geo makes of its source.
func (v *Variables) mapped(m mapping, depth int) (forms []Form, why whyOff) {
	if m.why != "" {
		return nil, m.why
	}
	sourceForms, why := v.formsOf(m.source, depth)
	if why != "" {
		return nil, why
	}
	for _, form := range sourceForms {
		found, why := v.lookedUp(m, form, depth)
		if why != "" {
			return nil, why
		}
		forms = append(forms, only(form.Requests, found)...)
	}
	return forms, ""
}

// lookedUp are the forms of what a map or a geo makes of one form of its source.
func (v *Variables) lookedUp(m mapping, form Form, depth int) (forms []Form, why whyOff) {
	switch {
	case len(form.Parts) == 0:
		value, why := m.lookup(form.Text)
		if why != "" {
			return nil, why
		}
		return v.formsOf(value, depth)
	case len(form.Parts) == 1 && form.Text == "":
		return v.formsByPart(m, form.Parts[0], depth)
	}
	return nil, "A map looks up several parts of the request together."
}

// lookup is the value for a text that is known, or why the import cannot tell it.
func (m *mapping) lookup(text string) (value string, why whyOff) {
	for _, e := range m.entries {
		for _, p := range e.patterns {
			fits, ok := entryKinds[e.kind].fits(p, text)
			switch {
			case !ok:
				return "", whyOff("The import cannot tell whether " + p + " of a map fits " + strconv.Quote(text) + ".")
			case fits:
				return e.value, ""
			}
		}
	}
	return m.other, ""
}

// formsByPart are the forms for the values that a part of a request may have.
func (v *Variables) formsByPart(m mapping, p request.Part, depth int) (forms []Form, why whyOff) {
	if len(m.entries) > maxForms { // each is compared with each before it
		return nil, tooManyForms
	}
	value := p.Value()
	if m.looksUp("request_uri") {
		value = request.PathWithQuery
	}
	var earlier []request.Selection // what fits the entries before
	for _, e := range m.entries {
		found, why := v.formsOf(e.value, depth)
		if why != "" {
			return nil, why
		}
		selections := e.selects(value)
		for _, s := range selections {
			rest := s
			exemptEarlierEntries(&rest, earlier)
			if !rest.HasExempt(s.Match) { // else an earlier entry has all of them
				forms = append(forms, only(rest, found)...)
			}
		}
		earlier = append(earlier, selections...)
	}
	others, why := v.formsOf(m.other, depth)
	if why != "" {
		return nil, why
	}
	var rest request.Selection
	exemptEarlierEntries(&rest, earlier)
	return append(forms, only(rest, others)...), ""
}

// exemptEarlierEntries exempts the requests whose value nginx finds in an earlier entry. What a comment says of that
// entry holds for the others too.
func exemptEarlierEntries(s *request.Selection, earlier []request.Selection) {
	for _, entry := range earlier {
		if !s.Match.IsApart(entry.Match) {
			for _, text := range entry.Comments() {
				s.Comment(text)
			}
		}
	}
	s.ExemptSelected(earlier, func(_ int, why string) string { return why })
}

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
	// over is the pattern over a value of the request, as a policy has it. It is not ok if no match can say it. A comment
	// says what else the policy compares.
	over func(of request.Value, pattern string) (p request.Pattern, comment string, ok bool)
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

// selects are the requests whose value fits the entry. Those that have the header and those that lack it need a
// selection each. If no request has such a value, there is none.
func (e *mapEntry) selects(of request.Value) []request.Selection {
	var s request.Selection
	var list []request.Pattern
	for _, text := range e.patterns {
		if e.isNever(of, text) {
			continue
		}
		v, comment, ok := entryKinds[e.kind].over(of, text)
		if !ok {
			var unknown request.Selection
			unknown.CannotMatch("a map looks up the " + of.Part.String() + " " + text)
			return []request.Selection{unknown}
		}
		list = request.AppendNew(list, v)
		if comment != "" {
			s.Comment(comment)
		}
	}
	switch {
	case len(list) == 0:
		return nil
	case of.Part.Kind == request.KindHeader:
		return selectByHeader(of.Part, list)
	}
	s.Match = of.Part.Matching(list...)
	return []request.Selection{s}
}

// isNever reports whether no request's value has the text of an entry. nginx compares texts, and so no client's address
// is localhost or 10.0.0.1/32, which a policy takes for 10.0.0.1.
func (e *mapEntry) isNever(of request.Value, text string) bool {
	return e.kind == entryText && of.IsNever(request.Exact(plainText(text)))
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

func networkOver(of request.Value, pattern string) (p request.Pattern, comment string, ok bool) {
	text, ok := request.NetworkText(pattern)
	return request.Exact(text), "", ok && of.Part.Kind == request.KindClientIP
}

func textFits(pattern, text string) (fits, ok bool) {
	return strings.EqualFold(plainText(pattern), text), true
}

// plainText is a text without the backslash that it may begin with, so that it is none of the other kinds.
func plainText(pattern string) string { return strings.TrimPrefix(pattern, `\`) }

// No other part than a header may be empty.
func textOver(of request.Value, pattern string) (p request.Pattern, comment string, ok bool) {
	text := plainText(pattern)
	isHeader := of.Part.Kind == request.KindHeader
	if text == "" && !isHeader {
		return request.Pattern{}, "", false
	}
	return fitting(of, request.Text(text, isHeader || of.Part.Kind == request.KindPath))
}

// fitting is the pattern for the same values as a policy has it.
func fitting(of request.Value, as request.Pattern) (p request.Pattern, comment string, ok bool) {
	fits := of.Fitting(as)
	if fits.IsOff() {
		return request.Pattern{}, "", false
	}
	return fits.Match.Of(of.Part)[0], strings.Join(fits.Comments(), " "), true
}

func hostsLength(pattern string) int { return len(pattern) }

func hostsFit(pattern, text string) (fits, ok bool) {
	return request.IsHostBelow(text, pattern), request.IsHostOrWildcard(pattern)
}

func hostsOver(of request.Value, pattern string) (p request.Pattern, comment string, ok bool) {
	ok = of.Part.Kind == request.KindHost && request.IsHostOrWildcard(pattern)
	return request.Exact(strings.ToLower(pattern)), "", ok
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

func regexOver(of request.Value, pattern string) (p request.Pattern, comment string, ok bool) {
	p, ok = request.Searched(splitRegex(pattern))
	if !ok {
		return request.Pattern{}, "", false
	}
	return fitting(of, p)
}
