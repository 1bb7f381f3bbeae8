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
	why     unsayable
}

// Read reads a map or a geo.
func (v *Variables) Read(d *nginxconf.Directive) {
	if len(d.Args) == 0 {
		v.Fail(PlaceOf(d), "needs the variable that it makes, such as $plan")
		return
	}
	name := strings.TrimPrefix(d.Arg(len(d.Args)-1), "$")
	isGeo := d.Name == "geo"
	made := mapping{source: d.Arg(0)}
	if isGeo && len(d.Args) < 2 {
		made.source = "$remote_addr"
	}
	hasHosts := len(nginxconf.Named(d.Block, "hostnames")) > 0
	for _, e := range d.Block {
		switch value := e.Arg(0); {
		case e.Name == "default":
			made.other = value
		case e.Name == "include":
			made.why = unsayable("The file " + value + " is not here, which $" + name + " is made of.")
		case isGeo && (e.Name == "ranges" || e.Name == "delete"):
			made.why = unsayable("The import does not read " + e.Name + " of geo $" + name + ".")
		case isGeo && strings.HasPrefix(e.Name, "proxy"):
			v.Note(PlaceOf(e), "Envoy finds the client's address by its own settings: set them to the same")
		case e.Name == "hostnames" || e.Name == "volatile":
		default:
			made.entries = append(made.entries, mapEntry{kindOfEntry(e.Name, isGeo, hasHosts), []string{e.Name}, value})
		}
	}
	slices.SortStableFunc(made.entries, func(a, b mapEntry) int {
		if a.kind != b.kind {
			return cmp.Compare(a.kind, b.kind)
		}
		narrowness := entryKinds[a.kind].narrowness
		return narrowness(b.patterns[0]) - narrowness(a.patterns[0])
	})
	made.merge()
	v.made[strings.ToLower(name)] = made
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
func (v *Variables) mapped(m mapping, depth int) (forms []Form, why unsayable) {
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
		forms = append(forms, only(form.Selection, found)...)
	}
	return forms, ""
}

// lookedUp are the forms of what a map or a geo makes of one form of its source.
func (v *Variables) lookedUp(m mapping, form Form, depth int) (forms []Form, why unsayable) {
	switch {
	case len(form.Parts) == 0:
		return v.formsOfText(m, form.Text, depth)
	case len(form.Parts) == 1 && form.Text == "":
		return v.formsByPart(m, form.Parts[0], depth)
	}
	return nil, "A map looks up several parts of the request together."
}

// formsOfText are the forms of the value for a text that is known.
func (v *Variables) formsOfText(m mapping, text string, depth int) (forms []Form, why unsayable) {
	value, why := m.lookup(text)
	if why != "" {
		return nil, why
	}
	return v.formsOf(value, depth)
}

// lookup is the value for a text that is known, or why the import cannot tell it.
func (m *mapping) lookup(text string) (value string, why unsayable) {
	for _, e := range m.entries {
		for _, p := range e.patterns {
			fits, ok := entryKinds[e.kind].fits(p, text)
			switch {
			case !ok:
				return "", unsayable("The import cannot tell whether " + p + " of a map fits " + strconv.Quote(text) + ".")
			case fits:
				return e.value, ""
			}
		}
	}
	return m.other, ""
}

// formsByPart are the forms for the values that a part of a request may have.
func (v *Variables) formsByPart(m mapping, p request.Part, depth int) (forms []Form, why unsayable) {
	if len(m.entries) > maxForms { // each is compared with each before it
		return nil, tooManyForms
	}
	var earlier []request.Selection // what fits the entries before
	for _, e := range m.entries {
		found, why := v.formsOf(e.value, depth)
		if why != "" {
			return nil, why
		}
		selections := e.selects(p)
		for _, fits := range selections {
			rest := withoutEarlierEntries(fits, earlier)
			if !rest.HasExempt(fits.Match) { // else an earlier entry has all of them
				forms = append(forms, only(rest, found)...)
			}
		}
		earlier = append(earlier, selections...)
	}
	others, why := v.formsOf(m.other, depth)
	if why != "" {
		return nil, why
	}
	return append(forms, only(withoutEarlierEntries(request.Selection{}, earlier), others)...), ""
}

// withoutEarlierEntries are the requests of an entry without those whose value nginx finds in an earlier one.
func withoutEarlierEntries(fits request.Selection, earlier []request.Selection) request.Selection {
	for _, entry := range fits.LeaveOut(earlier) {
		fits.Cannot(entry.Why)
	}
	return fits
}

// PlaceOf is the place of a directive of nginx.
func PlaceOf(d *nginxconf.Directive) source.Place {
	return source.Place{File: d.File, Path: d.Name, Line: d.Line}
}
