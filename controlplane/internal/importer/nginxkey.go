package importer

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// keyForm is a form that a key has for some requests: parts of them, and a text that is the same for
// all. The forms of a key are for different requests. nginx does not count an empty key.
//
// An example: clients of the plan gold have no limit, those of staff share one, and all others are limited
// by address.
//
//	map $http_x_plan $counted { gold ""; staff all; default $binary_remote_addr; }
//	limit_req_zone $counted zone=one:1m rate=5r/s;
//
// The key $counted has three forms. The last two become rules:
//
//	requests                           parts      text
//	x-plan is gold                     none       empty
//	x-plan is staff, and not gold      none       all
//	x-plan is neither gold nor staff   client_ip  empty
//
// They are found by calls that lead back to formsOf, as the values of a map may have variables too:
//
//	formsOf        a text: joins the forms of its variables and of what is between them
//	  variable     $binary_remote_addr is a part of the request
//	  mapped       $counted is what a map makes of its source. formsOf finds the forms of that:
//	    lookup       its form is a text: formsOf the one value for that text
//	    formsByPart  its form is a part: formsOf each value of the map, for the requests that get it
type keyForm struct {
	selection
	parts []part
	text  string
}

// maxForms bounds the forms of a key, and maxMaps the maps that look each other up.
const (
	maxForms = 100
	maxMaps  = 10
)

var variableName = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))`)

// formsOf are the forms of a text with variables, or why a policy has none.
func (n *nginxImport) formsOf(text string, depth int) (forms []keyForm, why string) {
	forms = []keyForm{{}}
	end := 0 // of the variable before
	for _, found := range variableName.FindAllStringSubmatchIndex(text, -1) {
		begin := found[0]
		name := strings.Trim(text[begin+1:found[1]], "{}")
		more, why := n.variable(name, depth)
		if why != "" {
			return nil, why
		}
		forms = joinForms(forms, []keyForm{{text: text[end:begin]}})
		forms = joinForms(forms, more)
		if len(forms) > maxForms {
			return nil, "The key has more than 100 forms."
		}
		end = found[1]
	}
	return joinForms(forms, []keyForm{{text: text[end:]}}), ""
}

// joinForms are the forms of two texts behind each other.
func joinForms(before, behind []keyForm) (all []keyForm) {
	for _, a := range before {
		for _, b := range behind {
			f := keyForm{selection: a.and(b.selection), parts: slices.Clone(a.parts), text: a.text + b.text}
			for _, p := range b.parts {
				if !slices.ContainsFunc(f.parts, p.is) {
					f.parts = append(f.parts, p)
				}
			}
			all = append(all, f)
		}
	}
	return all
}

// nginxParts are the variables of nginx that are a part of the request.
var nginxParts = map[string]part{
	"binary_remote_addr": clientIP, "remote_addr": clientIP,
	"host": host, "http_host": host, "server_name": host,
	"uri": fullPath, "document_uri": fullPath, "request_uri": fullPath,
	"request_method":         method,
	"scheme":                 {kind: kindProperty, path: []string{"request", "scheme"}},
	"server_port":            {kind: kindProperty, path: []string{"destination", "port"}},
	"connection":             connectionID,
	"ssl_client_s_dn":        {kind: kindProperty, path: []string{"connection", "subject_peer_certificate"}},
	"ssl_client_fingerprint": {kind: kindProperty, path: []string{"connection", "sha256_peer_certificate_digest"}},
}

// variable are the forms of a variable.
func (n *nginxImport) variable(name string, depth int) (forms []keyForm, why string) {
	f := keyForm{}
	if name == "request_uri" {
		f.note("The key has the path without its query: $request_uri has both.")
	}
	if name == "server_name" && n.server != "" {
		f.note(n.server)
	}
	p, ok := nginxParts[name]
	for prefix, kind := range map[string]partKind{"http_": kindHeader, "cookie_": kindCookie, "arg_": kindQuery} {
		if rest, has := strings.CutPrefix(name, prefix); has && !ok && rest != "" {
			p = part{kind: kind, name: rest}
			ok = true
		}
	}
	v, isKnown := n.variables[name]
	switch {
	case isKnown && depth == maxMaps:
		return nil, "More than 10 maps look each other up."
	case isKnown:
		return n.mapped(v, depth+1)
	case !ok:
		return nil, "A policy has nothing like nginx' $" + name + "."
	}
	if p.kind == kindHeader {
		p.name = strings.ReplaceAll(p.name, "_", "-")
	}
	f.parts = []part{p}
	return []keyForm{f}, ""
}

// nginxVariable is what a map or a geo makes of a source.
type nginxVariable struct {
	source  string
	entries []nginxEntry // nginx takes the first that fits
	other   string       // the value if none fits
	why     string       // why a policy cannot say it
}

// nginxEntry has the patterns of one value.
type nginxEntry struct {
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
func (n *nginxImport) readVariable(d *nginxconf.Directive) {
	name := strings.TrimPrefix(d.Arg(len(d.Args)-1), "$")
	isGeo := d.Name == "geo"
	v := nginxVariable{source: d.Arg(0)}
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
			n.note(placeOf(e), "Envoy finds the client's address by its own settings: set them to the same")
		case e.Name == "hostnames" || e.Name == "volatile":
		default:
			v.entries = append(v.entries, nginxEntry{kindOfEntry(e.Name, isGeo, hasHosts), []string{e.Name}, value})
		}
	}
	slices.SortStableFunc(v.entries, func(a, b nginxEntry) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), b.narrowness()-a.narrowness())
	})
	v.merge()
	n.variables[name] = v
}

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
func (e *nginxEntry) narrowness() int {
	switch e.kind {
	case entryNetwork:
		network, _ := networkOf(e.patterns[0])
		return network.Bits()
	case entryHosts:
		return len(e.patterns[0])
	case entryText, entryRegex:
	}
	return 0
}

// merge joins entries that follow each other and are of one kind and value: among them the order makes no difference.
func (v *nginxVariable) merge() {
	var list []nginxEntry
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
func (n *nginxImport) mapped(v nginxVariable, depth int) (forms []keyForm, why string) {
	if v.why != "" {
		return nil, v.why
	}
	sourceForms, why := n.formsOf(v.source, depth)
	for _, form := range sourceForms {
		var found []keyForm
		switch {
		case len(form.parts) == 0:
			found, why = n.formsOf(v.lookup(form.text), depth)
		case len(form.parts) == 1 && form.text == "":
			found, why = n.formsByPart(v, form.parts[0], depth)
		default:
			why = "A map looks up several parts of the request together."
		}
		if why != "" {
			return nil, why
		}
		forms = append(forms, joinForms([]keyForm{{selection: form.selection}}, found)...)
	}
	return forms, why
}

// lookup is the value for a text that is known.
func (v *nginxVariable) lookup(text string) string {
	for _, e := range v.entries {
		for _, p := range e.patterns {
			if e.kind == entryRegex {
				re, ok := searched(strings.TrimLeft(p, "~*"), strings.HasPrefix(p, "~*"))
				if ok && re.matches(text) {
					return e.value
				}
			} else if strings.EqualFold(strings.TrimPrefix(p, `\`), text) {
				return e.value
			}
		}
	}
	return v.other
}

// formsByPart are the forms for the values that a part of a request may have.
func (n *nginxImport) formsByPart(v nginxVariable, p part, depth int) (forms []keyForm, why string) {
	if len(v.entries) > maxForms { // each is compared with each before it
		return nil, "The key has more than 100 forms."
	}
	var earlier []selection // by the patterns of an entry alone
	entries := append(slices.Clone(v.entries), nginxEntry{value: v.other})
	for i, e := range entries {
		fits := selection{}
		if i < len(v.entries) {
			fits = e.selects(p)
		}
		own := fits // without the values that nginx finds in an earlier entry
		for _, s := range earlier {
			own.exemptEarlierValues(p, s)
		}
		earlier = append(earlier, fits)
		found, why := n.formsOf(e.value, depth)
		if why != "" {
			return nil, why
		}
		forms = append(forms, joinForms([]keyForm{{selection: own}}, found)...)
	}
	return forms, ""
}

// exemptEarlierValues exempts the requests of an earlier entry from those of a later one.
func (s *selection) exemptEarlierValues(p part, earlier selection) {
	switch {
	case len(earlier.whyOff) > 0:
		s.cannot(earlier.whyOff[0])
	case !apartValues(s.match.of(p), earlier.match.of(p)):
		s.exempt = append(slices.Clip(s.exempt), earlier.match)
	}
}

// apartValues reports whether no value fits patterns of both lists; an empty list fits all.
func apartValues(a, b []pattern) bool {
	for _, p := range a {
		for _, q := range b {
			first, isNetwork := networkOf(p.text)
			second, _ := networkOf(q.text)
			if isNetwork && first.Overlaps(second) || !isNetwork && !p.apart(q) {
				return false
			}
		}
	}
	return len(a) > 0 && len(b) > 0
}

// selects are the requests whose part fits the entry.
func (e *nginxEntry) selects(p part) (s selection) {
	var list []pattern
	for _, text := range e.patterns {
		v, ok := e.pattern(p, text)
		if !ok {
			s.cannotMatch("a map looks up the " + p.String() + " " + text)
			return s
		}
		list = append(list, v)
	}
	if p.kind == kindHeader && len(list) > 1 {
		var all []string
		for _, v := range list {
			all = append(all, "(?:"+v.regexp()+")")
		}
		list = []pattern{{expression, strings.Join(all, "|")}}
	}
	s.match = p.matching(list...)
	return s
}

// pattern is the pattern of an entry over a part. It is not ok if no match can say it.
func (e *nginxEntry) pattern(p part, text string) (v pattern, ok bool) {
	switch {
	case e.kind == entryNetwork:
		network, err := netip.ParsePrefix(text)
		if err != nil {
			one, isAddress := networkOf(text)
			return pattern{exactly, one.Addr().String()}, isAddress && p.kind == kindClientIP
		}
		return pattern{exactly, network.Masked().String()}, p.kind == kindClientIP
	case e.kind == entryHosts:
		return pattern{exactly, strings.ToLower(text)}, p.kind == kindHost && isHost(strings.TrimPrefix(text, "*."))
	case e.kind == entryRegex:
		v, ok = searched(strings.TrimLeft(text, "~*"), strings.HasPrefix(text, "~*"))
		return v, ok && (p.kind == kindHeader || p.kind == kindPath)
	case text == "":
		return pattern{kind: absent}, p.kind == kindHeader
	}
	text = strings.TrimPrefix(text, `\`)
	v = stringPattern("", text, "", p.kind == kindHeader || p.kind == kindPath)
	_, ok = p.restrict(match{}, v)
	return v, ok
}
