package importer

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// guessBelow lists the descriptors that lead to limits below these levels, of what
// their keys commonly stand for. Where Envoy's routes choose a key's value there
// is one for each value.
func guessBelow(levels []*tree, before descriptor, known *keyParts, n *notes) (list []descriptor) {
	for _, group := range grouped(levels, func(c *tree) string { return c.key }) {
		key := group[0].key
		p, isKnown := known.parts[key]
		note := ""
		if known.used[key] = true; !isKnown {
			p, note, isKnown = guess(key, len(group) == 1 && group[0].value == key)
		}
		ways := [][]*tree{group}
		if !isKnown {
			ways = grouped([]*tree{{children: group}}, func(c *tree) string { return c.value })
		} else if note != "" {
			n.add(place{}, note)
		}
		for _, way := range ways {
			e, d := entry{key: key, part: &p}, before
			if value := way[0].value; !isKnown {
				why := "It is for requests for which Envoy sends " + key + " = " + value + ". " + note
				if value == "" {
					why = "It is for requests for which Envoy sends " + key + ", with a counter for each value. " + note
				}
				e = entry{key: key, value: value}
				d.unknown = append(slices.Clip(d.unknown), why)
			}
			d.entries = append(slices.Clip(d.entries), e)
			if slices.ContainsFunc(way, func(t *tree) bool { return t.quota.limits() }) {
				list = append(list, d)
			}
			list = append(list, guessBelow(way, d, known, n)...)
		}
	}
	return list
}

// grouped groups the levels below others that lead to a limit, in their order.
func grouped(levels []*tree, by func(*tree) string) (groups [][]*tree) {
	index := map[string]int{}
	for _, level := range levels {
		for _, c := range level.children {
			at, known := index[by(c)]
			switch {
			case !c.limited():
			case known:
				groups[at] = append(groups[at], c)
			default:
				index[by(c)] = len(groups)
				groups = append(groups, []*tree{c})
			}
		}
	}
	return groups
}

// guess is the part of a request that a descriptor's key commonly stands for,
// where no actions say it. It is not ok for a key whose values Envoy's routes
// choose, such as one that is its own value.
func guess(key string, isOwnValue bool) (p part, note string, ok bool) {
	chosen := "Envoy's routes choose the value of the key " + key + ", and they are not in this file: give them with --routes FILE."
	if isOwnValue {
		return part{}, chosen, false
	}
	switch strings.ToLower(key) {
	case "remote_address":
		return clientIP, "", true
	case "masked_remote_address":
		return maskedIP, "masked_remote_address counts whole addresses here, as Envoy does if its action has no prefix " +
			"lengths.", true
	case "destination_cluster":
		return part{kind: "property", path: []string{"xds", "cluster_name"}}, "", true
	case "source_cluster":
		return part{kind: "property", path: []string{"node", "cluster"}}, "", true
	case "path":
		return headerPart(":path"), pathNote, true
	case "method":
		return method, "", true
	case "host", "authority":
		return host, "", true
	case "generic_key", "header_match", "query_match", "remote_address_match":
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
func (in *source) headerPart(m any, field, name string) (p part, ok bool) {
	p = headerPart(name)
	if ok = p.kind != "header" || isHeaderName(p.name); !ok {
		in.failField(m, field, "must be the name of a header, not "+strconv.Quote(name))
	}
	return p, ok
}
