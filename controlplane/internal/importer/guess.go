package importer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// keyParts says which part of a request each descriptor's key stands for. It collects what it was asked.
type keyParts struct {
	parts   map[string]part // what --key says
	used    map[string]bool // keys that usePart was asked for
	guesses []string        // what usePart guessed, for a note
}

// parts reads the parts of Keys.
func (o Options) parts() (*keyParts, error) {
	made := &keyParts{parts: map[string]part{}, used: map[string]bool{}}
	for key, text := range o.Keys {
		kind, name, _ := strings.Cut(text, ":")
		switch {
		case kind == "header" && isHeaderName(strings.ToLower(name)):
			made.parts[key] = headerPart(name)
		case kind == "query" && name != "":
			made.parts[key] = part{kind: kindQuery, name: name}
		case text == "client_ip":
			made.parts[key] = clientIP
		case text == "path":
			made.parts[key] = fullPath
		case text == "method":
			made.parts[key] = method
		case text == "host":
			made.parts[key] = host
		default:
			return nil, &UsageError{
				Message: "the key " + key + " cannot be " + strconv.Quote(text) + ": it is header:NAME, query:NAME, client_ip, " +
					"path, method or host",
				Hint: "write one such as --key user=header:x-user-id",
			}
		}
	}
	return made, nil
}

// unused is an error about a key of --key that no descriptor has.
func (k *keyParts) unused() error {
	for _, key := range slices.Sorted(maps.Keys(k.parts)) {
		if !k.used[key] {
			return fmt.Errorf("no descriptor has the key %s of --key", key)
		}
	}
	return nil
}

// guess lists the descriptors that lead to limits. Without routes it guesses the part of the request from
// each key. Where Envoy's routes choose a key's value, there is a descriptor for each value.
func (j *job) guess(levels []*level) []descriptor {
	isFree := func(l *level) bool { return !l.hasLimit() }
	list := j.guessBelow(slices.DeleteFunc(slices.Clone(levels), isFree), descriptor{})
	if len(j.keys.guesses) > 0 {
		j.note(place{}, "Guessed keys, because no routes are given: "+strings.Join(j.keys.guesses, ", ")+". A request "+
			"without such a header has no limit. To be sure, give --routes FILE or --key KEY=header:NAME.")
	}
	return list
}

// guessBelow lists the descriptors that begin as the levels do.
func (j *job) guessBelow(levels []*level, before descriptor) (list []descriptor) {
	depth := len(before.entries)
	for _, group := range grouped(levels, depth, func(p pair) (string, bool) { return p.key, true }) {
		key := group[0].pairs[depth].key
		isOther := func(l *level) bool { return l.pairs[depth].text != key }
		p, why := j.keys.usePart(key, !slices.ContainsFunc(group, isOther))
		if why != "" {
			list = append(list, j.guessEach(before, key, why, group)...)
			continue
		}
		if differs := notesOfUsual[strings.ToLower(key)]; differs != "" {
			j.note(place{}, differs)
		}
		list = append(list, j.guessWith(before, entry{key: key, part: &p}, group)...)
	}
	return list
}

// guessEach lists the descriptors for each value of a key that stands for no part of the request. Their
// rules are off.
func (j *job) guessEach(before descriptor, key, why string, levels []*level) (list []descriptor) {
	depth := len(before.entries)
	for _, way := range grouped(levels, depth, func(p pair) (string, bool) { return p.text, true }) {
		d, value := before, way[0].pairs[depth].text
		which := key + " = " + value
		if value == "" {
			which = key + ", with a counter for each value"
		}
		d.whyOff = append(slices.Clip(d.whyOff), "It is for requests for which Envoy sends "+which+". "+why)
		list = append(list, j.guessWith(d, entry{key: key, value: value}, way)...)
	}
	return list
}

// guessWith lists a descriptor with one entry more, if a level ends there, and those that begin so.
func (j *job) guessWith(d descriptor, e entry, levels []*level) (list []descriptor) {
	d.entries = append(slices.Clip(d.entries), e)
	if slices.ContainsFunc(levels, func(l *level) bool { return len(l.pairs) == len(d.entries) }) {
		list = append(list, d)
	}
	return append(list, j.guessBelow(levels, d)...)
}

// usual are the keys that Envoy's actions have where they name none, and those
// that people give them.
var usual = map[string]part{
	"remote_address":        clientIP,
	"masked_remote_address": maskedIP,
	"destination_cluster":   {kind: kindProperty, path: []string{"xds", "cluster_name"}},
	"source_cluster":        {kind: kindProperty, path: []string{"node", "cluster"}},
	"path":                  headerPart(":path"),
	"method":                method,
	"host":                  host,
	"authority":             host,
}

var notesOfUsual = map[string]string{
	"masked_remote_address": "masked_remote_address counts whole addresses here, as Envoy does if its action has no " +
		"prefix lengths.",
	"path": pathNote,
}

// usePart is the part of a request that a descriptor's key stands for: what --key says, or what the key
// commonly means. If Envoy's routes choose the values of the key, as they do if a key is its own value,
// there is none, and why says so.
func (k *keyParts) usePart(key string, isOwnValue bool) (p part, why string) {
	k.used[key] = true
	if p, ok := k.parts[key]; ok {
		return p, ""
	}
	lower := strings.ToLower(key)
	name := strings.ReplaceAll(lower, "_", "-")
	p, isUsual := usual[lower]
	switch {
	case isOwnValue, slices.Contains(chosenByRoutes, lower):
		return p, "Envoy's routes choose the value of the key " + key + ", and they are not in this file: give them with " +
			"--routes FILE."
	case isUsual:
		return p, ""
	case strings.HasSuffix(name, "remote-address"):
		k.addGuess(key + " = the client's address")
		return maskedIP, ""
	case isHeaderName(name):
		k.addGuess(key + " = header " + name)
		return part{kind: kindHeader, name: name}, ""
	}
	return p, "The import does not know what the key " + key + " stands for: give --routes FILE, or --key '" + key +
		"=header:NAME'."
}

// chosenByRoutes are keys whose values the routes choose.
var chosenByRoutes = []string{"generic_key", "header_match", "query_match", "remote_address_match"}

func (k *keyParts) addGuess(text string) {
	if !slices.Contains(k.guesses, text) {
		k.guesses = append(k.guesses, text)
	}
}

const pathNote = "Paths are counted without the query here. Envoy sends :path with it."
