package envoy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// keyParts says which part of a request each descriptor's key stands for. It collects what it was asked.
type keyParts struct {
	given   map[string]request.Compared // what --key says
	used    map[string]bool             // keys that usePart was asked for
	guesses []string                    // what usePart guessed, for a note
}

// newKeyParts reads what --key says.
func newKeyParts(given map[string]string) (*keyParts, error) {
	k := &keyParts{given: map[string]request.Compared{}, used: map[string]bool{}}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		p, ok := partNamed(given[key])
		if !ok {
			return nil, &source.UsageError{
				Message: "the key " + key + " cannot be " + strconv.Quote(given[key]) + ": it is header:NAME, query:NAME, " +
					"client_ip, path, method or host",
				Hint: "write one such as --key user=header:x-user-id",
			}
		}
		k.given[key] = p
	}
	return k, nil
}

// partNamed is the part that --key names.
func partNamed(text string) (p request.Compared, ok bool) {
	kind, name, _ := strings.Cut(text, ":")
	switch {
	case kind == "header" && request.IsHeaderName(strings.ToLower(name)):
		return request.Header(name), true
	case kind == "query" && name != "":
		return request.Part{Kind: request.KindQuery, Name: name}.Compared(), true
	}
	p, ok = map[string]request.Compared{
		"client_ip": request.ClientIP.Compared(),
		"path":      request.FullPath.Compared(), // without the query, while Envoy's actions send :path with it
		"method":    request.Method.Compared(),
		"host":      request.Host.Compared(),
	}[text]
	return p, ok
}

// unused is an error about a key of --key that no descriptor has.
func (k *keyParts) unused() error {
	for _, key := range slices.Sorted(maps.Keys(k.given)) {
		if !k.used[key] {
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
var usual = map[string]request.Compared{
	"remote_address":        request.ClientIP.Compared(),
	"masked_remote_address": request.MaskedIP,
	"destination_cluster":   request.Property("xds", "cluster_name").Compared(),
	"source_cluster":        request.Property("node", "cluster").Compared(),
	"path":                  request.PathWithQuery, // as actions send it
	"method":                request.Method.Compared(),
	"host":                  request.Host.Compared(),
	"authority":             request.Host.Compared(),
}

var notesOfUsual = map[string]string{
	"masked_remote_address": "masked_remote_address counts whole addresses here, as Envoy does if its action has no " +
		"prefix lengths.",
	"path": pathNote,
}

// usePart is the part of a request that a descriptor's key stands for: what --key says, or what the key commonly means.
//
//	{key: user, value: alice}    the header user
//	{key: slow, value: slow}     none: isOwnValue, and the routes choose that value, as no header slow is slow
//
// If Envoy's routes choose the values of the key, there is none, and why says so.
func (k *keyParts) usePart(key string, isOwnValue bool) (p request.Compared, why string) {
	k.used[key] = true
	if p, ok := k.given[key]; ok {
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
		return request.MaskedIP, ""
	case request.IsHeaderName(name):
		k.addGuess(key + " = header " + name)
		return request.Header(name), ""
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
