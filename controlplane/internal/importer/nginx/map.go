package nginx

import (
	"cmp"
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
	why     unsayable
}

// readVariable reads a map or a geo.
func (n *reader) readVariable(d *nginxconf.Directive) {
	if len(d.Args) == 0 {
		n.Fail(placeOf(d), "needs the variable that it makes, such as $plan")
		return
	}
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
			v.why = unsayable("The file " + value + " is not here, which $" + name + " is made of.")
		case isGeo && (e.Name == "ranges" || e.Name == "delete"):
			v.why = unsayable("The import does not read " + e.Name + " of geo $" + name + ".")
		case isGeo && strings.HasPrefix(e.Name, "proxy"):
			n.Note(placeOf(e), "Envoy finds the client's address by its own settings: set them to the same")
		case e.Name == "hostnames" || e.Name == "volatile":
		default:
			v.entries = append(v.entries, mapEntry{kindOfEntry(e.Name, isGeo, hasHosts), []string{e.Name}, value})
		}
	}
	slices.SortStableFunc(v.entries, func(a, b mapEntry) int {
		if a.kind != b.kind {
			return cmp.Compare(a.kind, b.kind)
		}
		narrowness := entryKinds[a.kind].narrowness
		return narrowness(b.patterns[0]) - narrowness(a.patterns[0])
	})
	v.merge()
	n.variables[name] = v
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
func (n *reader) mapped(v mapping, depth int) (forms []keyForm, why unsayable) {
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
func (n *reader) formsOfText(v mapping, text string, depth int) (forms []keyForm, why unsayable) {
	value, why := v.lookup(text)
	if why != "" {
		return nil, why
	}
	return n.formsOf(value, depth)
}

// lookup is the value for a text that is known, or why the import cannot tell it.
func (v *mapping) lookup(text string) (value string, why unsayable) {
	for _, e := range v.entries {
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
	return v.other, ""
}

// formsByPart are the forms for the values that a part of a request may have.
func (n *reader) formsByPart(v mapping, p request.Part, depth int) (forms []keyForm, why unsayable) {
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
			exemptEarlierValues(&own, s)
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
func exemptEarlierValues(s *request.Selection, earlier request.Selection) {
	switch {
	case len(earlier.WhyOff) > 0:
		s.Cannot(earlier.WhyOff[0])
	case !s.Match.IsApart(earlier.Match):
		s.AddExempt(earlier.Match)
	}
}
