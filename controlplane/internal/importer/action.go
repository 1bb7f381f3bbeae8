package importer

import (
	"slices"
	"strconv"
	"strings"
)

// maxVariants bounds the descriptors of one list of actions: each entry that
// may be left out doubles them, and each that is not known has its values.
const maxVariants = 1_000

// readRateLimit reads one item of rate_limits: the descriptors that Envoy
// makes of its actions. There are several where an entry may be left out.
func readRateLimit(o *object, stage uint64) []descriptor {
	if at := o.integer("stage", 0); at != stage {
		o.note("stage", "this rate_limit is of stage "+strconv.FormatUint(at, 10)+", the filter of stage "+strconv.FormatUint(stage, 10)+": it is for another filter, and nothing was made of it")
		o.ignore("actions", "disable_key", "limit", "hits_addend", "apply_on_stream_done", "x_ratelimit_option")
		return nil
	}
	d := descriptor{place: o.place}
	o.without("no runtime key switches a rule off here: use mode", "disable_key")
	o.without("all rules that match are in the fields of a response", "x_ratelimit_option")
	if o.has("limit") {
		o.ignore("limit")
		d.notes = append(d.notes, "Envoy may send a limit from metadata along, which goes before the one here; nothing here can say that.")
	}
	if o.boolean("apply_on_stream_done", false) {
		d.unknown = append(d.unknown, "It counts when the response is complete, and denies nothing; nothing here counts then.")
	}
	readHits(&d, o.child("hits_addend"))
	list := []descriptor{d}
	for _, a := range o.children("actions") {
		list = readAction(list, a)
	}
	var made []descriptor
	for _, d := range list {
		if len(d.entries) > 0 {
			made = append(made, d)
		}
	}
	return made
}

func readHits(d *descriptor, o *object) {
	if o == nil {
		return
	}
	if o.boolean("is_negative_hits", false) {
		d.unknown = append(d.unknown, "It gives tokens back; nothing here does that.")
	}
	switch n := o.integer("number", 1); {
	case o.has("format"):
		d.notes = append(d.notes, "Envoy counts "+o.text("format")+" for a request; here it is 1. A header or query parameter can be a rule's cost.")
	case n == 0:
		d.unknown = append(d.unknown, "It counts no hits (hits_addend 0): it only asks, and nothing here asks without counting.")
	case n > 1:
		d.cost = strconv.FormatUint(n, 10)
	}
}

// readAction adds what an action does to each of the descriptors.
func readAction(list []descriptor, o *object) []descriptor {
	for _, kind := range []struct {
		name string
		read func(a *object) (with []descriptor)
	}{
		{"request_headers", readRequestHeaders},
		{"query_parameters", readQueryParameters},
		{"remote_address", func(*object) []descriptor { return one(entry{key: "remote_address", part: &clientIP}) }},
		{"masked_remote_address", readMasked},
		{"generic_key", readGenericKey},
		{"header_value_match", readHeaderValueMatch},
		{"metadata", readMetadata},
		{"dynamic_metadata", readMetadata},
		{"source_cluster", func(*object) []descriptor { return one(guessed("source_cluster")) }},
		{"destination_cluster", func(*object) []descriptor { return one(guessed("destination_cluster")) }},
		{"query_parameter_value_match", readQueryMatch},
		{"remote_address_match", readRemoteAddressMatch},
	} {
		if !o.has(kind.name) {
			continue
		}
		n := o.get(kind.name)
		var a *object
		if n != nil {
			a = o.in.object(n, o.path+kind.name)
		}
		return product(list, kind.read(a))
	}
	if o.has("extension") {
		name := o.in.look(o.get("extension")).text("name")
		return product(list, []descriptor{{
			entries: []entry{{key: name}},
			unknown: []string{"The extension " + name + " makes this descriptor; it was not translated."},
		}})
	}
	d := descriptor{unknown: []string{"An action of it is not known to this import."}}
	for _, f := range o.node.Fields {
		o.ignore(f.Name)
		d.entries = append(d.entries, entry{key: f.Name})
		d.unknown = []string{"The action " + f.Name + " is not known to this import."}
	}
	return product(list, []descriptor{d})
}

// one is what an action adds that always adds the same.
func one(e entry, notes ...string) []descriptor {
	return []descriptor{{entries: []entry{e}, notes: notes}}
}

func guessed(key string) entry {
	p, _, _ := guess(key)
	return entry{key: key, part: &p}
}

// product adds every way an action may go to every descriptor.
func product(list, ways []descriptor) []descriptor {
	var all []descriptor
	for _, way := range ways {
		for _, d := range list {
			d = d.clone()
			d.entries = append(d.entries, way.entries...)
			if !d.match.and(way.match) {
				d.unknown = append(d.unknown, "Its actions ask for one header twice, which a match cannot.")
			}
			d.exempt = append(d.exempt, way.exempt...)
			d.unknown = append(d.unknown, way.unknown...)
			d.notes = append(d.notes, way.notes...)
			all = append(all, d)
		}
	}
	if len(all) > maxVariants {
		all = all[:maxVariants]
		all[0].notes = append(all[0].notes, "More than "+strconv.Itoa(maxVariants)+" combinations of values and of headers that may be absent: the others were left out.")
	}
	return all
}

func readRequestHeaders(a *object) []descriptor {
	name := strings.ToLower(a.text("header_name"))
	if name == "" {
		a.fail("header_name", "request_headers needs a header_name")
		return nil
	}
	p := headerPart(name)
	if p.kind == "header" && !isHeaderName(name) {
		a.fail("header_name", "must be the name of a header, not "+strconv.Quote(name))
		return nil
	}
	e := entry{key: a.text("descriptor_key"), part: &p}
	switch p.kind {
	case "path":
		a.in.notes.add(place{}, pathNote)
	case "host":
		a.in.notes.add(place{}, "Hosts are counted in lower case and without port here; Envoy sends them as they come.")
	}
	ways := one(e)
	if a.boolean("skip_if_absent", false) && p.kind == "header" {
		ways = append(ways, descriptor{match: match{headers: []headerMatch{{name, "!"}}}})
	}
	return ways
}

func readQueryParameters(a *object) []descriptor {
	p := part{kind: "query", name: a.text("query_parameter_name")}
	if p.name == "" {
		a.fail("query_parameter_name", "query_parameters needs a query_parameter_name")
		return nil
	}
	e := entry{key: a.text("descriptor_key"), part: &p}
	if e.key == "" {
		e.key = "query_param"
	}
	if a.boolean("skip_if_absent", false) {
		return one(e, "Envoy sends the descriptor also without the query parameter "+p.name+", less this entry; here the rule needs it.")
	}
	return one(e)
}

func readMasked(a *object) []descriptor {
	p := part{kind: "client_ip", v4: int(a.integer("v4_prefix_mask_len", 32)), v6: int(a.integer("v6_prefix_mask_len", 128))}
	if p.v4 > 32 || p.v6 > 128 {
		a.fail("v4_prefix_mask_len", "prefixes are at most 32 and 128 bits")
		p = clientIP
	}
	return one(entry{key: "masked_remote_address", part: &p})
}

func readGenericKey(a *object) []descriptor {
	return []descriptor{fixedOrMade(a, "generic_key")}
}

// fixed is the entry of an action that sends the same value for each request,
// under that key if it names none.
func fixed(a *object, key string) entry {
	e := entry{key: a.text("descriptor_key"), value: a.text("descriptor_value")}
	if e.key == "" {
		e.key = key
	}
	a.ignore("default_value")
	return e
}

// fixedOrMade is the descriptor of fixed where Envoy's formatter may make the value.
func fixedOrMade(a *object, key string) descriptor {
	e := fixed(a, key)
	d := descriptor{entries: []entry{e}}
	if strings.Contains(e.value, "%") {
		d.unknown = append(d.unknown, "The value "+e.value+" is made of the request by Envoy's formatter, which was not translated.")
	}
	return d
}

func readHeaderValueMatch(a *object) []descriptor {
	d := descriptor{entries: []entry{fixed(a, "header_match")}}
	var c conditions
	for _, h := range a.children("headers") {
		c.header(h)
	}
	d.unknown = append(d.unknown, c.unknown...)
	d.notes = append(d.notes, c.notes...)
	switch {
	case a.boolean("expect_match", true):
		d.match, d.exempt = c.match, c.exempt
	case len(c.exempt) > 0 || c.match.empty():
		d.unknown = append(d.unknown, "It is sent where its headers do not match, and some of them are inverted; nothing here can say that.")
	default:
		d.exempt = []match{c.match}
	}
	return []descriptor{d}
}

func readQueryMatch(a *object) []descriptor {
	e := fixed(a, "query_match")
	a.ignore("expect_match", "query_parameters")
	return []descriptor{{entries: []entry{e}, unknown: []string{"Whether a query parameter has a value is no condition of a match here."}}}
}

func readMetadata(a *object) []descriptor {
	path := []string{"metadata", "filter_metadata"}
	if strings.EqualFold(a.text("source"), "ROUTE_ENTRY") || a.text("source") == "1" {
		path = []string{"xds", "route_metadata", "filter_metadata"}
	}
	key := a.child("metadata_key")
	path = append(path, key.text("key"))
	for _, s := range key.children("path") {
		path = append(path, s.text("key"))
	}
	if slices.Contains(path, "") {
		a.fail("metadata_key", "must have a key, and each of its path too")
	}
	p := part{kind: "property", path: path}
	var notes []string
	if v := a.text("default_value"); v != "" {
		notes = append(notes, "Where the metadata is missing Envoy sends "+v+"; here the rule does not apply then. missing_key: share would count such requests together.")
	}
	if a.boolean("skip_if_absent", false) {
		notes = append(notes, "Envoy sends the descriptor also without the metadata, less this entry; here the rule needs it.")
	}
	return one(entry{key: a.text("descriptor_key"), part: &p}, notes...)
}
