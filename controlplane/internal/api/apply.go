package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

const (
	// defaultFile names a policy that came without a file name.
	defaultFile = "policy.yaml"
	// largePolicy is the size from which the memory of reading a policy is worth
	// returning to the system at once.
	largePolicy = 128 << 10
)

// apply handles POST /v1/policies?file=NAME&wasm=PATH&base=REVISION with the YAML as
// body. Without wasm the path in force stays; wasm= names none. For canary see readRollout.
func (s *server) apply(w http.ResponseWriter, r *request) (err error) {
	p := proposal{draft: store.Draft{File: cmp.Or(r.get("file"), defaultFile), YAML: r.body}}
	p.base, err = r.base()
	if err != nil {
		return err
	}
	p.draft.Rollout, err = readRollout(r.query)
	if err != nil {
		return err
	}
	if r.has("wasm") {
		wasm := r.get("wasm")
		p.wasm = &wasm
	}
	if err := p.check(); err != nil {
		return err
	}
	applied, err := s.inTurn(r.Context(), func() ([]proposal, error) { return []proposal{p}, nil })
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, applied[0])
	return nil
}

// Changes is the body of POST /v1/changes: policies that become revisions together, or
// none does.
type Changes struct {
	Policies []File  `json:"policies"`
	Wasm     *string `json:"wasm,omitempty"` // as the parameter of POST /v1/policies, for each of them
}

// File is a policy as it was written.
type File struct {
	Name string `json:"file"`
	YAML string `json:"yaml"`
}

// AppliedChanges answers POST /v1/changes.
type AppliedChanges struct {
	Applied []Applied `json:"applied"` // in the order of the policies
}

// maxChanges is the most that a change of several policies may take as JSON.
const maxChanges = 8 << 20

// applySeveral handles POST /v1/changes.
func (s *server) applySeveral(w http.ResponseWriter, r *request) error {
	var changes Changes
	body := json.NewDecoder(bytes.NewReader(r.body))
	body.DisallowUnknownFields()
	if err := body.Decode(&changes); err != nil || body.More() || len(changes.Policies) == 0 {
		return badRequest(`the body is not {"policies": [{"file": NAME, "yaml": TEXT}, …]}`)
	}
	var list []proposal
	for _, f := range changes.Policies {
		draft := store.Draft{File: cmp.Or(f.Name, defaultFile), YAML: []byte(f.YAML)}
		p := proposal{draft: draft, wasm: changes.Wasm}
		if err := p.check(); err != nil {
			return err
		}
		list = append(list, p)
	}
	applied, err := s.inTurn(r.Context(), func() ([]proposal, error) { return list, nil })
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, AppliedChanges{applied})
	return nil
}

// rollback handles POST /v1/rollback/{revision}?policy=NAME&base=REVISION: a new revision
// with the content and the binary of an old one.
func (s *server) rollback(w http.ResponseWriter, r *request) error {
	base, err := r.base()
	if err != nil {
		return err
	}
	applied, err := s.inTurn(r.Context(), func() ([]proposal, error) {
		number, err := s.number(r) // in turn, as which one is previous depends on the changes before
		if err != nil {
			return nil, err
		}
		old, err := s.revision(r, number)
		draft := store.Draft{File: old.File, RollbackOf: old.Number, YAML: old.YAML}
		return []proposal{{draft: draft, wasm: &old.Wasm, base: base}}, err
	})
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, applied[0])
	return nil
}

// base is the revision that a change must replace, 0 for the first policy. It is nil where
// any may be replaced.
func (q query) base() (*uint64, error) {
	if !q.has("base") {
		return nil, nil
	}
	n, err := strconv.ParseUint(q.get("base"), 10, 64)
	if err != nil {
		return nil, badRequest("base %s is not the number of a revision, or 0 for none", shown(q.get("base")))
	}
	return &n, nil
}

// inTurn makes one change at a time: so each is compared with the very revision that it
// replaces, and only one takes the memory of reading a policy, up to 200 times its size. Its
// caller writes the answer after the turn: one who reads slowly holds up no other.
func (s *server) inTurn(ctx context.Context, propose func() ([]proposal, error)) ([]Applied, error) {
	done, err := s.judging.take(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	proposals, err := propose()
	if err != nil {
		return nil, err
	}
	size := 0
	for _, p := range proposals {
		size += len(p.draft.YAML)
	}
	if size > largePolicy {
		defer debug.FreeOSMemory()
	}
	list, err := judgeAll(ctx, proposals)
	if err != nil {
		return nil, err
	}
	for {
		applied, err := s.append(ctx, list)
		if !errors.Is(err, store.ErrConflict) {
			return applied, err
		}
		// Another control plane on the same store was faster.
		if err := s.XDS.Refresh(ctx); err != nil {
			return nil, err
		}
	}
}

// append compares judged policies with those that they replace, and makes all of them
// revisions, or none.
func (s *server) append(ctx context.Context, list []judged) ([]Applied, error) {
	takers, last := s.XDS.Ledger().Takers()
	behind, above := s.XDS.Ledger().Ahead()
	change := store.Change{Last: last, Above: above}
	standing, err := s.standing(ctx, "") // once: a change may be of a thousand policies
	if err != nil {
		return nil, err
	}
	successors := make([]successor, len(list))
	for i, j := range list {
		successors[i], err = s.compare(ctx, j, standing)
		if err != nil {
			return nil, err
		}
		d := successors[i].draft
		takers[d.Policy] = d.Proxies
		change.Drafts = append(change.Drafts, d)
	}
	if err := apart(takers, change.Drafts); err != nil {
		return nil, err
	}
	revisions, err := s.Store.Append(ctx, change)
	if err != nil {
		return nil, err
	}
	if err := s.XDS.Refresh(ctx); err != nil { // it goes on trying
		s.Log.Error("follow the store", "error", err)
	}
	applied := make([]Applied, len(revisions))
	for i := range revisions {
		applied[i] = s.applied(&revisions[i], &successors[i])
		if behind > 0 {
			applied[i].ProxyWarnings = append(applied[i].ProxyWarnings, fmt.Sprintf(
				"this serve was behind: connected proxies ran newer revisions of this store, up to %d, "+
					"which it does not have; this change replaces them", above))
		}
	}
	return applied, nil
}

func (s *server) applied(r *store.Revision, of *successor) Applied {
	proxies := s.XDS.Ledger().Connected(r.Policy)
	s.Log.Info("revision applied", "revision", r.Number, "policy", r.Policy, "rollback_of", r.RollbackOf,
		"who", access.Who(of.draft.Audit.Who), "file", r.File, "sha256", r.SHA256, "wasm", r.Wasm, "proxies", proxies)
	return Applied{
		Summary: r.Summary, Warnings: Problems(of.warnings), Proxies: proxies, Changes: of.changes, Replaces: of.replaces,
		ProxyWarnings: append(s.Quota.misfits(of.policy, s.managed(r.Policy)), s.blind(r.Rollout, of.policy)...),
	}
}

// apart refuses drafts of policies that could be for one proxy with another policy.
func apart(takers map[string]*selector.Selector, drafts []store.Draft) error {
	for _, d := range drafts {
		for _, name := range slices.Sorted(maps.Keys(takers)) {
			other := takers[name]
			if name == d.Policy || d.Proxies == nil || other == nil {
				continue
			}
			if example, both := selector.Both(d.Proxies, other); both {
				return refusal(http.StatusConflict,
					"the policies %s and %s would both be for a proxy with %s: narrow the proxies of one", d.Policy, name, example)
			}
		}
	}
	return nil
}
