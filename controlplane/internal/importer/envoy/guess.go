package envoy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// guesser guesses what Envoy sends where no rate_limits say it, for all configurations of an import.
type guesser struct {
	*draft.Findings
	given  map[string]request.Value // what --key says that keys stand for
	hasRun bool                     // else rate_limits say what all keys stand for
	keys   map[string]bool          // of the levels
	parts  []string                 // what it guessed of them, for noteParts
}

// guess lists the descriptors that lead to limits. Without routes it guesses the part of the request from
// each key. Where Envoy's routes choose a key's value, there is a descriptor for each value. An example:
//
//	levels                        descriptors
//	x_user = anything             x_user, whose part is the header x-user: a guess
//	  path = /login               x_user and path, whose part is the path: it commonly is
//	generic_key = slow            generic_key = slow, whose rule is off: only routes say when Envoy sends it
//
// The calls that go from level to level:
//
//	guessBelow     for each key of the levels at a depth:
//	  guessEach    if routes choose its values, a descriptor for each value
//	  guessWith    adds an entry with the key, and begins again below
func (g *guesser) guess(levels []*descriptor.Level) []descriptor.Descriptor {
	g.hasRun = true
	isFree := func(l *descriptor.Level) bool { return l.Limit == nil }
	return g.guessBelow(slices.DeleteFunc(slices.Clone(levels), isFree), descriptor.Descriptor{})
}

// noteParts notes what parts of requests it guessed, in one note.
func (g *guesser) noteParts() {
	if len(g.parts) > 0 {
		g.NoteImport("Guessed keys, because no routes are given: " + strings.Join(g.parts, ", ") + ". A request " +
			"without such a header has no limit. To be sure, give --routes FILE or --key KEY=header:NAME.")
	}
}

// guessBelow lists the descriptors that begin as the levels do.
func (g *guesser) guessBelow(levels []*descriptor.Level, before descriptor.Descriptor) (list []descriptor.Descriptor) {
	depth := len(before.Entries)
	byKey := func(p descriptor.Pair) (string, bool) { return p.Key, true }
	for _, group := range descriptor.Grouped(levels, depth, byKey) {
		key := group[0].Pairs[depth].Key
		isOwnValue := !slices.ContainsFunc(group, func(l *descriptor.Level) bool { return l.Pairs[depth].Text() != key })
		m := g.meaningOf(key, isOwnValue)
		g.keys[key] = true
		if text := key + " = " + m.guess; m.guess != "" && !slices.Contains(g.parts, text) {
			g.parts = append(g.parts, text)
		}
		if m.whyNone != "" {
			list = append(list, g.guessEach(before, key, m.whyNone, group)...)
			continue
		}
		if m.value.Part.Kind == request.KindHost {
			g.NoteImport(hostNote)
		}
		if m.note != "" {
			g.NoteImport(m.note)
		}
		list = append(list, g.guessWith(before, descriptor.FromRequest(key, m.value), group)...)
	}
	return list
}

// guessEach lists the descriptors for each value of a key that stands for no part of the request. Their
// rules are off. A value that another one takes has none.
func (g *guesser) guessEach(
	before descriptor.Descriptor, key, why string, levels []*descriptor.Level,
) (list []descriptor.Descriptor) {
	depth := len(before.Entries)
	byValue := func(p descriptor.Pair) (string, bool) { return p.Text(), true }
	groups := descriptor.Grouped(levels, depth, byValue)
	var values []request.Pattern
	for _, group := range groups {
		values = append(values, group[0].Pairs[depth].Pattern)
	}
	for i, group := range groups {
		if isTaken(values, i) {
			continue
		}
		d, value := before, values[i].Text()
		which := key + " = " + value
		if value == "" {
			which = key + ", with a counter for each value"
		}
		d.Requests.TurnOff(request.WhyOff("It is for requests for which Envoy sends " + which + ". " + why))
		list = append(list, g.guessWith(d, descriptor.Fixed(key, value), group)...)
	}
	return list
}

// isTaken reports whether another value takes all requests of one, by its index: an earlier wildcard takes those of a
// wildcard, as a* before ab*, and the wildcard * takes those of any value.
func isTaken(values []request.Pattern, i int) bool {
	takes := func(other request.Pattern) bool {
		return other.Kind() == request.WithWildcards && other.Matches(values[i].Text())
	}
	switch values[i].Kind() {
	case request.WithWildcards:
		return slices.ContainsFunc(values[:i], takes)
	case request.AnyValue:
		return slices.ContainsFunc(values, takes)
	default: // a text, which the service looks for first
		return false
	}
}

// guessWith lists a descriptor with one entry more, if a level ends there, and those that begin so.
func (g *guesser) guessWith(
	d descriptor.Descriptor, e descriptor.Entry, levels []*descriptor.Level,
) (list []descriptor.Descriptor) {
	d.Entries = append(slices.Clip(d.Entries), e)
	if slices.ContainsFunc(levels, func(l *descriptor.Level) bool { return len(l.Pairs) == len(d.Entries) }) {
		list = append(list, d)
	}
	return append(list, g.guessBelow(levels, d)...)
}

// newGuesser reads what --key says.
func newGuesser(to *draft.Findings, keys map[string]string) (*guesser, error) {
	g := &guesser{Findings: to, given: map[string]request.Value{}, keys: map[string]bool{}}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		p, ok := partNamed(keys[key])
		if !ok {
			return nil, &source.UsageError{
				Message: "the key " + key + " cannot be " + strconv.Quote(keys[key]) + ": it is header:NAME, query:NAME, " +
					"client_ip, path, method or host",
				Hint: "write one such as --key user=header:x-user-id",
			}
		}
		g.given[key] = p
	}
	return g, nil
}

// partNamed is the part that --key names.
func partNamed(text string) (p request.Value, ok bool) {
	part, name, _ := strings.Cut(text, ":")
	switch {
	case part == "header" && request.IsHeaderName(strings.ToLower(name)):
		return request.Header(name), true
	case part == "query" && name != "":
		return request.Part{Kind: request.KindQuery, Name: name}.Value(), true
	}
	p, ok = map[string]request.Value{
		"client_ip": request.ClientIP.Value(),
		"path":      request.FullPath.Value(), // without the query, while Envoy's actions send :path with it
		"method":    request.Method.Value(),
		"host":      request.Host.Value(),
	}[text]
	return p, ok
}

// refuseUnused is an error about a key of --key that no level has.
func (g *guesser) refuseUnused() error {
	for _, key := range slices.Sorted(maps.Keys(g.given)) {
		switch {
		case g.keys[key]:
		case !g.hasRun:
			return &source.UsageError{Message: "--key is for an import without rate_limits",
				Hint: "leave out --key: the rate_limits say what each key stands for"}
		default:
			return errUnusedKey(key)
		}
	}
	return nil
}

func errUnusedKey(key string) error {
	return &source.UsageError{Message: "no descriptor has the key " + key + " of --key",
		Hint: "spell it as the files do, or leave it out"}
}

// usual are the keys that Envoy's actions have where they name none, and those
// that people give them.
var usual = map[string]request.Value{
	"remote_address":        request.ClientIP.Value(),
	"masked_remote_address": request.ClientNetwork,
	"destination_cluster":   request.Property("xds", "cluster_name").Value(),
	"source_cluster":        request.Property("node", "cluster").Value(),
	"path":                  request.PathWithQuery, // as actions send it
	"method":                request.Method.Value(),
	"host":                  request.Host.Value(),
	"authority":             request.Host.Value(),
}

var notesOfUsual = map[string]string{
	"masked_remote_address": "masked_remote_address counts whole addresses here, as Envoy does if its action has no " +
		"prefix lengths.",
	"path": pathNote,
}

// meaning is what a descriptor's key stands for, where no rate_limits say that: a value of the request, or whyNone.
type meaning struct {
	value   request.Value
	guess   string // what the value is, if the import guessed it
	note    string // how what the key commonly means differs from what Envoy sends
	whyNone string // Envoy's routes choose the key's values, or the import does not know the key
}

// meaningOf is what a key stands for: what --key says, or what the key commonly means.
//
//	{key: user, value: alice}    the header user
//	{key: slow, value: slow}     none: isOwnValue, and the routes choose that value, as no header slow is slow
func (g *guesser) meaningOf(key string, isOwnValue bool) meaning {
	if given, ok := g.given[key]; ok {
		return meaning{value: given}
	}
	lower := strings.ToLower(key)
	name := strings.ReplaceAll(lower, "_", "-")
	common, isUsual := usual[lower]
	switch {
	case isOwnValue, slices.Contains(chosenByRoutes, lower):
		return meaning{whyNone: "Envoy's routes choose the value of the key " + key + ", and they are not in this file: " +
			"give them with --routes FILE."}
	case isUsual:
		return meaning{value: common, note: notesOfUsual[lower]}
	case strings.HasSuffix(name, "remote-address"):
		return meaning{value: request.ClientNetwork, guess: "the client's address"}
	case request.IsHeaderName(name):
		return meaning{value: request.Header(name), guess: "header " + name}
	}
	return meaning{whyNone: "The import does not know what the key " + key + " stands for: give --routes FILE, or " +
		"--key '" + key + "=header:NAME'."}
}

// chosenByRoutes are keys whose values the routes choose.
var chosenByRoutes = []string{"generic_key", "header_match", "query_match", "remote_address_match"}

const (
	pathNote = "Paths are counted without the query here. Envoy sends :path with it."
	hostNote = "Hosts are counted in lower case and without port here. Envoy sends them as they come."
)
