package nginxkey

import (
	"cmp"
	"net/netip"
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
	whyOff  request.WhyOff
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
			m.whyOff = request.WhyOff("The file " + value + " is not here, which $" + name + " is made of.")
		case isGeo && (e.Name == "ranges" || e.Name == "delete"):
			m.whyOff = request.WhyOff("The import does not read " + e.Name + " of geo $" + name + ".")
		case isGeo && strings.HasPrefix(e.Name, "proxy"):
			v.Note(source.PlaceOf(e), "Envoy finds the client's address by its own settings: set them to the same")
		case e.Name == "hostnames" || e.Name == "volatile":
		default:
			m.entries = append(m.entries, mapEntry{[]pattern{patternOf(e.Name, isGeo, hasHosts)}, value})
		}
	}
	if isGeo {
		m.entries = lastOfEachNetwork(m.entries)
	}
	slices.SortStableFunc(m.entries, func(a, b mapEntry) int {
		return cmp.Or(cmp.Compare(a.kind(), b.kind()), -cmp.Compare(a.patterns[0].length(), b.patterns[0].length()))
	})
	m.merge()
	v.byName[strings.ToLower(name)] = m
}

// lastOfEachNetwork are the entries of a geo that nginx has: the last one of each network.
func lastOfEachNetwork(list []mapEntry) []mapEntry {
	isThere := map[netip.Prefix]bool{}
	slices.Reverse(list)
	list = slices.DeleteFunc(list, func(e mapEntry) bool {
		network, ok := request.NetworkOf(e.patterns[0].written())
		isReplaced := ok && isThere[network]
		isThere[network] = true
		return isReplaced
	})
	slices.Reverse(list)
	return list
}

// merge joins entries that follow each other and are of one kind and value: among them the order makes no difference.
func (m *mapping) merge() {
	var list []mapEntry
	for _, e := range m.entries {
		last := len(list) - 1
		if last >= 0 && list[last].kind() == e.kind() && list[last].value == e.value {
			list[last].patterns = append(list[last].patterns, e.patterns...)
		} else {
			list = append(list, e)
		}
	}
	m.entries = list
}

// mapped are the forms of what a map or a geo makes of its source.
func (v *Variables) mapped(m mapping) ([]Form, request.WhyOff) {
	if m.whyOff != "" {
		return nil, m.whyOff
	}
	sources, why := v.formsOf(m.source)
	if why != "" {
		return nil, why
	}
	var forms []Form
	for _, of := range sources {
		values, why := m.valuesFor(of)
		if why != "" {
			return nil, why
		}
		for _, value := range values {
			found, why := v.formsOf(value.text)
			if why != "" {
				return nil, why
			}
			ofValue := only(value.requests, found)
			forms = append(forms, only(of.Requests, ofValue)...)
			if len(forms) > maxForms {
				return nil, tooManyForms
			}
		}
	}
	return forms, ""
}

// mappedValue is a value that a map or a geo makes, for some of the requests that a form of its source is for.
type mappedValue struct {
	text     string
	requests request.Selection
}

// valuesFor are the values for a form of the source: one for a text, and those that a part of the request may get.
func (m *mapping) valuesFor(of Form) (list []mappedValue, why request.WhyOff) {
	if len(of.parts) == 0 {
		text, why := m.lookup(of.Text)
		return []mappedValue{{text: text}}, why
	}
	looksUp := of.parts[0]
	switch {
	case len(of.parts) > 1 || of.Text != "":
		return nil, "A map looks up several parts of the request together."
	case len(m.entries) > maxForms: // each would be compared with each before it
		return nil, tooManyForms
	case looksUp.isBytes && len(m.entries) > 0:
		return nil, "The bytes of $binary_remote_addr fit no text: a map or a geo looks up $remote_addr."
	}
	return m.valuesByEntry(looksUp.value), ""
}

// lookup is the value for a text that is known, or why the import cannot tell it.
func (m *mapping) lookup(text string) (value string, why request.WhyOff) {
	for _, e := range m.entries {
		for _, p := range e.patterns {
			matches, ok := p.matches(text)
			switch {
			case !ok:
				return "", request.WhyOff("The import cannot tell whether " + p.written() + " of a map fits " +
					strconv.Quote(text) + ".")
			case matches:
				return e.value, ""
			}
		}
	}
	return m.other, ""
}

// valuesByEntry are the values of the entries and the other one. Each has the requests that no earlier entry has.
func (m *mapping) valuesByEntry(of request.Value) (list []mappedValue) {
	var earlier []request.Selection
	for _, e := range m.entries {
		selections := e.selects(of)
		for _, s := range selections {
			rest := s
			exemptEarlierEntries(&rest, earlier)
			switch {
			case !rest.IsNone():
				list = append(list, mappedValue{e.value, rest})
			case len(rest.Comments()) > 0: // a policy compares less, so nginx may have some that no earlier entry has
				s.TurnOff(request.NoMatch("a policy does not tell them from those of an earlier entry of the map"))
				list = append(list, mappedValue{e.value, s})
			}
		}
		earlier = append(earlier, selections...)
	}
	var others request.Selection
	exemptEarlierEntries(&others, earlier)
	return append(list, mappedValue{m.other, others})
}

// exemptEarlierEntries exempts the requests whose value nginx finds in an earlier entry. What a comment says of that
// entry holds for the others too.
func exemptEarlierEntries(s *request.Selection, earlier []request.Selection) {
	for _, entry := range s.ExemptSelected(earlier, func(_ int, why request.WhyOff) request.WhyOff { return why }) {
		for _, text := range entry.Comments() {
			s.Comment(text)
		}
	}
}

// mapEntry has the patterns of one value, all of one kind.
type mapEntry struct {
	patterns []pattern
	value    string
}

func (e *mapEntry) kind() patternKind { return e.patterns[0].kind() }

// selects are the requests whose value matches the entry. Those that have the header and those that lack it need a
// selection each: to nginx a missing header is the empty text, and to a policy only Absent fits it. If no request has
// such a value, there is none.
func (e *mapEntry) selects(of request.Value) (list []request.Selection) {
	var all []request.Pattern
	for _, p := range e.patterns {
		if p.fitsNone(of) {
			continue
		}
		over, ok := p.over(of)
		if !ok || of.Fitting(over).IsOff() {
			var unknown request.Selection
			unknown.TurnOff(request.NoMatch("a map looks up the " + of.Part.String() + " " + p.written()))
			return []request.Selection{unknown}
		}
		all = append(all, over)
	}
	if len(all) == 0 {
		return nil
	}
	list = []request.Selection{of.Fitting(all...)}
	fitsEmpty := func(p request.Pattern) bool { return p.Matches("") }
	if of.Part.Kind == request.KindHeader && slices.ContainsFunc(all, fitsEmpty) {
		list = append(list, of.Fitting(request.Absent))
	}
	return list
}
