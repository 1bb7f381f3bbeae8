package importer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// keyParts are the parts of Keys, and which of them a descriptor has.
type keyParts struct {
	parts map[string]part
	used  map[string]bool
}

// parts reads the parts of Keys.
func (o Options) parts() (*keyParts, error) {
	made := &keyParts{map[string]part{}, map[string]bool{}}
	for key, text := range o.Keys {
		kind, name, named := strings.Cut(text, ":")
		switch {
		case kind == "header" && isHeaderName(strings.ToLower(name)):
			made.parts[key] = headerPart(name)
		case kind == "query" && name != "":
			made.parts[key] = part{kind: "query", name: name}
		case text == "client_ip":
			made.parts[key] = clientIP
		case !named && slices.Contains([]string{"path", "method", "host"}, kind):
			made.parts[key] = part{kind: kind}
		default:
			return nil, &UsageError{"the key " + key + " cannot be " + strconv.Quote(text) + ": it is header:NAME, query:NAME, client_ip, " +
				"path, method or host", "write one such as --key user=header:x-user-id"}
		}
	}
	return made, nil
}

// unused is an error where a key is one of no descriptor.
func (k *keyParts) unused() error {
	for _, key := range slices.Sorted(maps.Keys(k.parts)) {
		if !k.used[key] {
			return fmt.Errorf("no descriptor has the key %s of --key", key)
		}
	}
	return nil
}

// guess lists the descriptors that lead to limits, of what their keys commonly
// stand for. Where Envoy's routes choose a key's value there is one for each
// value. The levels begin as the descriptor does.
func (j *job) guess(levels []*level, before descriptor) (list []descriptor) {
	depth := len(before.entries)
	levels = slices.DeleteFunc(slices.Clone(levels), func(l *level) bool { return !l.limits() })
	for _, group := range grouped(levels, depth, func(p pair) (string, bool) { return p.key, true }) {
		key := group[0].entries[depth].key
		p, isKnown := j.keys.parts[key]
		note := ""
		if j.keys.used[key] = true; !isKnown {
			isOther := func(l *level) bool { return l.entries[depth].text != key }
			p, note, isKnown = guess(key, !slices.ContainsFunc(group, isOther))
		}
		ways := [][]*level{group}
		if !isKnown {
			ways = grouped(group, depth, func(p pair) (string, bool) { return p.text, true })
		} else if note != "" {
			j.add(place{}, note)
		}
		for _, way := range ways {
			e, d := entry{key: key, part: &p}, before
			if value := way[0].entries[depth].text; !isKnown {
				why := "It is for requests for which Envoy sends " + key + " = " + value + ". " + note
				if value == "" {
					why = "It is for requests for which Envoy sends " + key + ", with a counter for each value. " + note
				}
				e = entry{key: key, value: value}
				d.unknown = append(slices.Clip(d.unknown), why)
			}
			d.entries = append(slices.Clip(d.entries), e)
			if slices.ContainsFunc(way, func(l *level) bool { return len(l.entries) == depth+1 }) {
				list = append(list, d)
			}
			list = append(list, j.guess(way, d)...)
		}
	}
	return list
}

// usual are the keys that Envoy's actions have where they name none, and those
// that people give them.
var usual = map[string]part{
	"remote_address":        clientIP,
	"masked_remote_address": maskedIP,
	"destination_cluster":   {kind: "property", path: []string{"xds", "cluster_name"}},
	"source_cluster":        {kind: "property", path: []string{"node", "cluster"}},
	"path":                  headerPart(":path"),
	"method":                method,
	"host":                  host,
	"authority":             host,
}

var notesOfUsual = map[string]string{
	"masked_remote_address": "masked_remote_address counts whole addresses here, as Envoy does if its action has no prefix lengths.",
	"path":                  pathNote,
}

// guess is the part of a request that a descriptor's key commonly stands for,
// where no actions say it. It is not ok for a key whose values Envoy's routes
// choose, such as one that is its own value.
func guess(key string, isOwnValue bool) (p part, note string, ok bool) {
	chosen := "Envoy's routes choose the value of the key " + key + ", and they are not in this file: give them with --routes FILE."
	if isOwnValue {
		return part{}, chosen, false
	}
	lower := strings.ToLower(key)
	if p, ok := usual[lower]; ok {
		return p, notesOfUsual[lower], true
	}
	if slices.Contains([]string{"generic_key", "header_match", "query_match", "remote_address_match"}, lower) {
		return part{}, chosen, false
	}
	name := strings.ToLower(strings.ReplaceAll(key, "_", "-"))
	if strings.HasSuffix(name, "remote-address") {
		return maskedIP, "A guess: the key " + key + " is the client's address. To be sure, give --routes FILE.", true
	}
	if !isHeaderName(name) {
		return part{}, "The import does not know what the key " + key + " stands for: give --routes FILE, or --key '" +
			key + "=header:NAME'.", false
	}
	return part{kind: "header", name: name}, "A guess: the key " + key + " is the header " + name +
		", and requests without it have no limit. To be sure, give --routes FILE or --key " + key + "=header:NAME.", true
}

const pathNote = "Paths are counted without the query here. Envoy sends :path with it."

func isHeaderName(name string) bool { return len(name) <= policy.MaxNameBytes && policy.IsToken(name) }

// headerPart is the part for a header that a file names; a problem where that is no name.
func (r *reader) headerPart(m any, field, name string) (p part, ok bool) {
	p = headerPart(name)
	if ok = p.kind != "header" || isHeaderName(p.name); !ok {
		r.failField(m, field, "must be the name of a header, not "+strconv.Quote(name))
	}
	return p, ok
}
