package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	// Current names the newest revision in a path.
	Current = "current"
	// Previous names the revision that a rollback goes to: the newest before the
	// current one that some proxy accepted, or else the one before the current
	// one.
	Previous = "previous"

	// defaultFile names a policy that came without a file name.
	defaultFile = "policy.yaml"
	maxFileName = 255
	maxPath     = 4096 // of a path on Linux
)

// Applied answers POST /v1/policies and POST /v1/rollback/{revision}.
type Applied struct {
	store.Summary
	Warnings []Problem `json:"warnings"`
	Proxies  int       `json:"proxies"` // connected now
	// Changes is what becomes of each counter and of those that vanish, against
	// the revision before; null where there is none, or none that can be read.
	Changes []Change `json:"changes"`
}

// History answers GET /v1/policies.
type History struct {
	Revisions []store.Summary `json:"revisions"` // newest first
}

// Revision answers GET /v1/policies/{revision}.
type Revision struct {
	store.Summary
	YAML   string          `json:"yaml"`   // as given
	Policy json.RawMessage `json:"policy"` // as proxies get it
}

// apply handles POST /v1/policies?file=NAME&wasm=PATH with the YAML as body.
func (s *server) apply(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, policy.MaxBytes))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			fail(w, http.StatusRequestEntityTooLarge,
				fmt.Errorf("policy is larger than %d bytes (1 MiB), the most a policy may have", policy.MaxBytes))
			return
		}
		fail(w, http.StatusBadRequest, fmt.Errorf("read policy: %w", err))
		return
	}
	query := r.URL.Query()
	d := store.Draft{File: query.Get("file"), Wasm: query.Get("wasm"), YAML: text}
	if err := CheckWasm(d.Wasm); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	if d.File == "" {
		d.File = defaultFile
	}
	if len(d.File) > maxFileName || !utf8.ValidString(d.File) {
		fail(w, http.StatusBadRequest, fmt.Errorf("file name %.20q… has %d bytes: at most %d of UTF-8 are allowed", d.File, len(d.File), maxFileName))
		return
	}
	s.append(w, r, d)
}

// CheckWasm refuses what cannot be a path on another machine.
func CheckWasm(wasm string) error {
	if len(wasm) > maxPath {
		return fmt.Errorf("wasm path has %d bytes, at most %d are allowed", len(wasm), maxPath)
	}
	if strings.ContainsFunc(wasm, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("wasm path %q has characters that cannot be printed", wasm)
	}
	if wasm != "" && !path.IsAbs(wasm) {
		return fmt.Errorf("wasm path %q is relative: it must be an absolute path on the proxies' machines", wasm)
	}
	return nil
}

// append judges a draft and makes it a revision.
func (s *server) append(w http.ResponseWriter, r *http.Request, d store.Draft) {
	p, doc, warnings, err := policyfile.Read(d.File, d.YAML)
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, err)
		return
	}
	d.JSON = policy.AppendJSON(nil, doc)
	revision, err := s.store.Append(r.Context(), d)
	if err != nil {
		s.failStore(w, r, err)
		return
	}
	proxies := s.xds.Ledger().Connected()
	s.log.Info("revision applied", "revision", revision.Number, "rollback_of", revision.RollbackOf,
		"file", revision.File, "sha256", revision.SHA256, "wasm", revision.Wasm, "proxies", proxies)
	answer(w, http.StatusCreated, Applied{
		Summary: revision.Summary, Warnings: Problems(warnings), Proxies: proxies,
		Changes: s.changes(r.Context(), revision.Number, p),
	})
}

// rollback handles POST /v1/rollback/{revision}: a new revision with the
// content and the binary of an old one.
func (s *server) rollback(w http.ResponseWriter, r *http.Request) {
	number, err := s.number(r)
	if err != nil {
		s.failNumber(w, r, err)
		return
	}
	old, err := s.store.Get(r.Context(), number)
	if err != nil {
		s.failStore(w, r, err)
		return
	}
	s.append(w, r, store.Draft{File: old.File, Wasm: old.Wasm, RollbackOf: old.Number, YAML: old.YAML})
}

// history handles GET /v1/policies?limit=N.
func (s *server) history(w http.ResponseWriter, r *http.Request) {
	limit := 0
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			fail(w, http.StatusBadRequest, fmt.Errorf("limit %q is not a number from 1", text))
			return
		}
		limit = n
	}
	list, err := s.list(r, limit)
	if err != nil {
		s.failStore(w, r, err)
		return
	}
	answer(w, http.StatusOK, History{Revisions: list})
}

// list returns the newest revisions first, with what is known of damage to their
// texts.
func (s *server) list(r *http.Request, limit int) ([]store.Summary, error) {
	list, err := s.store.History(r.Context(), limit)
	damaged := s.xds.Ledger().Damaged()
	for i := range list {
		list[i].Damaged = list[i].Damaged || slices.Contains(damaged, list[i].Number)
	}
	return list, err
}

// get handles GET /v1/policies/{revision}.
func (s *server) get(w http.ResponseWriter, r *http.Request) {
	number, err := s.number(r)
	if err != nil {
		s.failNumber(w, r, err)
		return
	}
	revision, err := s.store.Get(r.Context(), number)
	if err != nil {
		s.failStore(w, r, err)
		return
	}
	answer(w, http.StatusOK, Revision{Summary: revision.Summary, YAML: string(revision.YAML), Policy: revision.JSON})
}

// errNumber says that a path names no revision at all.
var errNumber = errors.New("is not a revision: give a number from 1")

func (s *server) failNumber(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errNumber) {
		fail(w, http.StatusBadRequest, err)
		return
	}
	s.failStore(w, r, err)
}

// number reads the revision in a path.
func (s *server) number(r *http.Request) (uint64, error) {
	text := r.PathValue("revision")
	switch text {
	case Current:
		last, err := s.store.History(r.Context(), 1)
		if err != nil {
			return 0, err
		}
		if len(last) == 0 {
			return 0, fmt.Errorf("%w: nothing has been applied yet", store.ErrNotFound)
		}
		return last[0].Number, nil
	case Previous:
		return s.previous(r)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q %w, %q or %q", text, errNumber, Current, Previous)
	}
	return n, nil
}

func (s *server) previous(r *http.Request) (uint64, error) {
	list, err := s.list(r, 0)
	if err != nil {
		return 0, err
	}
	if len(list) < 2 {
		return 0, fmt.Errorf("%w: there is none before the current one", store.ErrNotFound)
	}
	whole := slices.DeleteFunc(slices.Clone(list[1:]), func(s store.Summary) bool { return s.Damaged })
	for _, revision := range whole {
		if revision.Acked {
			return revision.Number, nil
		}
	}
	if len(whole) == 0 {
		return 0, fmt.Errorf("%w: all before the current one are damaged", store.ErrNotFound)
	}
	return whole[0].Number, nil
}
