package api

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

const (
	maxFileName = 255
	maxWasm     = 4096 // the longest path on Linux
	maxShown    = 100
)

// query has the parameters behind the ? of a URL.
type query url.Values

// check refuses parameters that a request may not have, and those that are there twice.
func (r *request) check(known []string) error {
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		return badRequest("the query of the URL is malformed: escape it as NAME=VALUE&NAME=VALUE")
	}
	for _, name := range slices.Sorted(maps.Keys(r.query)) {
		switch given := r.query[name]; {
		case !slices.Contains(known, name):
			return badRequest("no parameter %s here: known are %q", shown(name), known)
		case len(given) > 1:
			return badRequest("parameter %s is given %d times: give it once", name, len(given))
		}
	}
	return nil
}

func (q query) get(name string) string { return url.Values(q).Get(name) }
func (q query) has(name string) bool   { return url.Values(q).Has(name) }

// number returns a parameter from 1, 0 if it is not given.
func (q query) number(name string, maximum uint64) (uint64, error) {
	text := q.get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < 1 || n > maximum {
		return 0, badRequest("%s %s is not a number from 1 to %d", name, shown(text), maximum)
	}
	return n, nil
}

// shown quotes what a caller sent, shortened.
func shown(text string) string { return strconv.Quote(printable.Cut(text, maxShown)) }

// CheckWasm refuses a text that cannot be a path on another machine.
func CheckWasm(wasm string) error {
	switch {
	case wasm == "":
		return nil
	case len(wasm) > maxWasm:
		return fmt.Errorf("wasm path has %d bytes, at most %d are allowed", len(wasm), maxWasm)
	case !printable.Is(wasm):
		return errors.New("wasm path has bytes that cannot be printed: it must be UTF-8 without control characters")
	case !path.IsAbs(wasm):
		return fmt.Errorf("wasm path %s is relative: it must be an absolute path on the proxies' machines", shown(wasm))
	case path.Clean(wasm) != wasm || wasm == "/":
		return fmt.Errorf("wasm path %s is not clean: %s is the file it names", shown(wasm), shown(path.Clean(wasm)))
	}
	return nil
}

func checkFileName(name string) error {
	switch {
	case len(name) > maxFileName:
		return fmt.Errorf("file name has %d bytes, at most %d are allowed", len(name), maxFileName)
	case !printable.Is(name):
		return errors.New("file name has bytes that cannot be printed: it must be UTF-8 without control characters")
	}
	return nil
}
