package nginx

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
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
	why     string     // why a policy cannot say it
}

// mapEntry has the patterns of one value.
type mapEntry struct {
	kind     entryKind
	patterns []string
	value    string
}

// entryKind is the kind of an entry's patterns. nginx tries them in this order.
type entryKind uint8

const (
	entryNetwork entryKind = iota // of a geo
	entryText                     // in upper or lower case
	entryHosts                    // such as *.a.example
	entryRegex
)

// readVariable reads a map or a geo.
func (n *reader) readVariable(d *nginxconf.Directive) {
	name := strings.TrimPrefix(d.Arg(len(d.Args)-1), "$")
	isGeo := d.Name == "geo"
	v := mapping{source: d.Arg(0)}
	if isGeo && len(d.Args) < 2 {
		v.source = "$remote_addr"
	}
	hasHosts := len(nginxconf.Named(d.Block, "hostnames")) > 0
	for _, e := range d.Block {
		switch value := e.Arg(0); {
		case e.Name == "default":
			v.other = value
		case e.Name == "include":
			v.why = "The file " + value + " is not here, which $" + name + " is made of."
		case isGeo && (e.Name == "ranges" || e.Name == "delete"):
			v.why = "The import does not read " + e.Name + " of geo $" + name + "."
		case isGeo && strings.HasPrefix(e.Name, "proxy"):
			n.Note(placeOf(e), "Envoy finds the client's address by its own settings: set them to the same")
		case e.Name == "hostnames" || e.Name == "volatile":
		default:
			v.entries = append(v.entries, mapEntry{kindOfEntry(e.Name, isGeo, hasHosts), []string{e.Name}, value})
		}
	}
	slices.SortStableFunc(v.entries, func(a, b mapEntry) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), b.narrowness()-a.narrowness())
	})
	v.merge()
	n.variables[name] = v
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

// narrowness orders entries of one kind: nginx takes the longest network or name that fits.
func (e *mapEntry) narrowness() int {
	switch e.kind {
	case entryNetwork:
		network, _ := request.NetworkOf(e.patterns[0])
		return network.Bits()
	case entryHosts:
		return len(e.patterns[0])
	case entryText, entryRegex:
	}
	return 0
}

// merge joins entries that follow each other and are of one kind and value: among them the order makes no difference.
func (v *mapping) merge() {
	var list []mapEntry
	for _, e := range v.entries {
		last := len(list) - 1
		if last >= 0 && list[last].kind == e.kind && list[last].value == e.value {
			list[last].patterns = append(list[last].patterns, e.patterns...)
		} else {
			list = append(list, e)
		}
	}
	v.entries = list
}

// mapped are the forms of what a map or a geo makes of its source.
func (n *reader) mapped(v mapping, depth int) (forms []keyForm, why string) {
	if v.why != "" {
		return nil, v.why
	}
	sourceForms, why := n.formsOf(v.source, depth)
	for _, form := range sourceForms {
		var found []keyForm
		switch {
		case len(form.parts) == 0:
			found, why = n.formsOfText(v, form.text, depth)
		case len(form.parts) == 1 && form.text == "":
			found, why = n.formsByPart(v, form.parts[0], depth)
		default:
			why = "A map looks up several parts of the request together."
		}
		if why != "" {
			return nil, why
		}
		forms = append(forms, joinForms([]keyForm{{Selection: form.Selection}}, found)...)
	}
	return forms, why
}

// formsOfText are the forms of the value for a text that is known.
func (n *reader) formsOfText(v mapping, text string, depth int) (forms []keyForm, why string) {
	value, why := v.lookup(text)
	if why != "" {
		return nil, why
	}
	return n.formsOf(value, depth)
}

// lookup is the value for a text that is known, or why the import cannot tell it.
func (v *mapping) lookup(text string) (value, why string) {
	for _, e := range v.entries {
		for _, p := range e.patterns {
			fits, ok := e.fits(p, text)
			switch {
			case !ok:
				return "", "The import cannot tell whether " + p + " of a map fits " + strconv.Quote(text) + "."
			case fits:
				return e.value, ""
			}
		}
	}
	return v.other, ""
}

// fits reports whether a text fits a pattern of the entry. It is not ok if the import cannot read the pattern, as an
// expression that RE2 does not have.
func (e *mapEntry) fits(p, text string) (fits, ok bool) {
	switch e.kind {
	case entryNetwork:
		network, ok := request.NetworkOf(p)
		address, isAddress := request.NetworkOf(text)
		if !isAddress {
			address, _ = request.NetworkOf("255.255.255.255") // what nginx takes for it
		}
		return ok && network.Contains(address.Addr()), ok
	case entryHosts:
		return request.IsHostBelow(text, p), request.IsHost(strings.TrimPrefix(p, "*."))
	case entryRegex:
		re, ok := searched(strings.TrimLeft(p, "~*"), strings.HasPrefix(p, "~*"))
		return re.Matches(text), ok
	case entryText:
	}
	return strings.EqualFold(strings.TrimPrefix(p, `\`), text), true
}

// formsByPart are the forms for the values that a part of a request may have.
func (n *reader) formsByPart(v mapping, p request.Part, depth int) (forms []keyForm, why string) {
	if len(v.entries) > maxForms { // each is compared with each before it
		return nil, "The key has more than 100 forms."
	}
	var earlier []request.Selection // by the patterns of an entry alone
	entries := append(slices.Clone(v.entries), mapEntry{value: v.other})
	for i, e := range entries {
		fits := request.Selection{}
		if i < len(v.entries) {
			fits = e.selects(p)
		}
		own := fits // without the values that nginx finds in an earlier entry
		for _, s := range earlier {
			exemptEarlierValues(&own, p, s)
		}
		earlier = append(earlier, fits)
		found, why := n.formsOf(e.value, depth)
		if why != "" {
			return nil, why
		}
		forms = append(forms, joinForms([]keyForm{{Selection: own}}, found)...)
	}
	return forms, ""
}

// exemptEarlierValues exempts the requests of an earlier entry from those of a later one.
func exemptEarlierValues(s *request.Selection, p request.Part, earlier request.Selection) {
	switch {
	case len(earlier.WhyOff) > 0:
		s.Cannot(earlier.WhyOff[0])
	case !areApart(p.Kind, s.Match.Of(p), earlier.Match.Of(p)):
		s.Exempt = append(slices.Clip(s.Exempt), earlier.Match)
	}
}

// areApart reports whether no value of a kind of part fits patterns of both lists; an empty list fits all.
func areApart(kind request.PartKind, a, b []request.Pattern) bool {
	for _, p := range a {
		for _, q := range b {
			if !request.IsValueApart(kind, p, q) {
				return false
			}
		}
	}
	return len(a) > 0 && len(b) > 0
}

// selects are the requests whose part fits the entry.
func (e *mapEntry) selects(p request.Part) (s request.Selection) {
	var list []request.Pattern
	for _, text := range e.patterns {
		v, ok := e.pattern(p, text)
		if !ok {
			s.CannotMatch("a map looks up the " + p.String() + " " + text)
			return s
		}
		list = append(list, v)
	}
	if p.Kind == request.KindHeader && len(list) > 1 {
		var all []string
		for _, v := range list {
			all = append(all, "(?:"+v.Regexp()+")")
		}
		list = []request.Pattern{request.Expression(strings.Join(all, "|"))}
	}
	s.Match = p.Matching(list...)
	return s
}

// pattern is the pattern of an entry over a part. It is not ok if no match can say it.
func (e *mapEntry) pattern(p request.Part, text string) (v request.Pattern, ok bool) {
	switch {
	case e.kind == entryNetwork:
		network, err := netip.ParsePrefix(text)
		if err != nil {
			one, isAddress := request.NetworkOf(text)
			return request.Exact(one.Addr().String()), isAddress && p.Kind == request.KindClientIP
		}
		return request.Exact(network.Masked().String()), p.Kind == request.KindClientIP
	case e.kind == entryHosts:
		ok = p.Kind == request.KindHost && request.IsHost(strings.TrimPrefix(text, "*."))
		return request.Exact(strings.ToLower(text)), ok
	case e.kind == entryRegex:
		v, ok = searched(strings.TrimLeft(text, "~*"), strings.HasPrefix(text, "~*"))
		return v, ok && (p.Kind == request.KindHeader || p.Kind == request.KindPath)
	case text == "":
		return request.Absent, p.Kind == request.KindHeader
	}
	text = strings.TrimPrefix(text, `\`)
	v = request.Text(text, p.Kind == request.KindHeader || p.Kind == request.KindPath)
	_, ok = request.Match{}.Narrow(p, v)
	return v, ok
}
