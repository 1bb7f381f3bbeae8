package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	// defaultFile names a policy that came without a file name.
	defaultFile = "policy.yaml"
	// largePolicy is the size from which the memory of reading a policy is worth
	// returning to the system at once.
	largePolicy = 128 << 10
)

// apply handles POST /v1/policies?file=NAME&wasm=PATH&base=REVISION with the YAML as
// body. Without wasm the path in force stays; wasm= names none.
func (s *server) apply(w http.ResponseWriter, r *http.Request) error {
	d, err := draft(r)
	if err != nil {
		return badRequest(err)
	}
	text, free, err := s.memory.read(w, r, policy.MaxBytes)
	defer free()
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		err = fmt.Errorf("policy is larger than %d bytes (1 MiB), the most a policy may have", policy.MaxBytes)
		return &failure{code: http.StatusRequestEntityTooLarge, err: err}
	case err != nil:
		return badRequest(fmt.Errorf("read policy: %w", err))
	}
	d.YAML = text
	return s.change(w, r, func() (store.Draft, error) {
		var err error
		if !r.URL.Query().Has("wasm") {
			d.Wasm, err = s.wasmInForce(r.Context())
		}
		return d, err
	})
}

// wasmInForce is the wasm path of the newest revision that no proxy has refused, or that is
// current all the same.
func (s *server) wasmInForce(ctx context.Context) (string, error) {
	list, err := s.store.History(ctx, 0)
	current := s.xds.Ledger().Current()
	for _, r := range list {
		if !r.Damaged && (!r.Nacked || r.Number == current) {
			return r.Wasm, err
		}
	}
	return "", err
}

// draft reads what the URL says about a policy.
func draft(r *http.Request) (store.Draft, error) {
	query, err := readQuery(r, "file", "wasm", "base")
	if err != nil {
		return store.Draft{}, err
	}
	d := store.Draft{File: cmp.Or(query.get("file"), defaultFile), Wasm: query.get("wasm")}
	return d, errors.Join(checkFileName(d.File), CheckWasm(d.Wasm))
}

// rollback handles POST /v1/rollback/{revision}?base=REVISION: a new revision with the
// content and the binary of an old one.
func (s *server) rollback(w http.ResponseWriter, r *http.Request) error {
	return s.change(w, r, func() (store.Draft, error) {
		number, err := s.number(r)
		if err != nil {
			return store.Draft{}, err
		}
		old, err := s.store.Get(r.Context(), number)
		return store.Draft{File: old.File, Wasm: old.Wasm, RollbackOf: old.Number, YAML: old.YAML}, err
	})
}

// change makes a draft the next revision and answers.
func (s *server) change(w http.ResponseWriter, r *http.Request, draft func() (store.Draft, error)) error {
	base, err := readBase(r)
	if err != nil {
		return err
	}
	applied, err := s.inTurn(r.Context(), base, draft)
	if err != nil {
		return err
	}
	answer(w, http.StatusCreated, applied)
	return nil
}

// readBase reads the revision that a change must replace, 0 for the first policy. It is
// nil where any may be replaced.
func readBase(r *http.Request) (*uint64, error) {
	given := r.URL.Query()
	if !given.Has("base") {
		return nil, nil
	}
	n, err := strconv.ParseUint(given.Get("base"), 10, 64)
	if err != nil {
		return nil, badRequest(fmt.Errorf("base %s is not the number of a revision, or 0 for none", shown(given.Get("base"))))
	}
	return &n, nil
}

// inTurn judges, compares and appends drafts one at a time: so a draft is compared
// with the very revision that it replaces, and only one takes the memory of
// reading a policy, up to 200 times its size. The answer is written afterwards: a
// caller that reads slowly holds up no other.
func (s *server) inTurn(ctx context.Context, base *uint64, draft func() (store.Draft, error)) (Applied, error) {
	done, err := s.judging.take(ctx)
	if err != nil {
		return Applied{}, err
	}
	defer done()
	d, err := draft()
	if err != nil {
		return Applied{}, err
	}
	if len(d.YAML) > largePolicy {
		defer debug.FreeOSMemory()
	}
	return s.append(ctx, base, d)
}

func (s *server) append(ctx context.Context, base *uint64, d store.Draft) (Applied, error) {
	p, doc, warnings, err := policyfile.Read(d.File, d.YAML)
	if err != nil {
		return Applied{}, err
	}
	d.JSON = policy.AppendJSON(nil, doc)
	before, err := s.current(ctx)
	if err != nil {
		return Applied{}, err
	}
	if n := before.revision.Number; base != nil && *base != n {
		return Applied{}, &failure{code: http.StatusConflict, err: fmt.Errorf(
			"revision %d has been applied since you looked: review your change again", n)}
	}
	if err := before.mayBecome(ctx, d, p); err != nil {
		return Applied{}, err
	}
	changes := before.changes(p)
	d.Audit = entry(ctx, before, d, p, changes)
	revision, err := s.store.Append(ctx, d)
	if err != nil {
		return Applied{}, err
	}
	proxies := s.xds.Ledger().Connected()
	s.log.Info("revision applied", "revision", revision.Number, "rollback_of", revision.RollbackOf,
		"who", access.Who(d.Audit.Who), "file", revision.File, "sha256", revision.SHA256, "wasm", revision.Wasm, "proxies", proxies)
	return Applied{
		Summary: revision.Summary, Warnings: Problems(warnings), Proxies: proxies, Changes: changes,
		ProxyWarnings: misfits(p, s.xds.Ledger().Managed()),
	}, nil
}

// current is the newest revision, with which the next one is compared.
type current struct {
	revision store.Revision // Number 0 before the first
	policy   *policy.Policy // nil where there is none, or none that this release reads
}

func (s *server) current(ctx context.Context) (current, error) {
	list, err := s.store.History(ctx, 1)
	if err != nil || len(list) == 0 {
		return current{}, err
	}
	c := current{}
	switch c.revision, err = s.store.Get(ctx, list[0].Number); {
	case errors.Is(err, store.ErrDamaged): // a new one is the cure
		c.revision.Summary = list[0]
		return c, nil
	case err != nil:
		return current{}, err
	}
	if c.policy, _, _, err = policyfile.Read(c.revision.File, c.revision.YAML); err != nil {
		s.log.Warn("compare with the revision before", "revision", c.revision.Number, "error", err)
	}
	return c, nil
}

// changes says what becomes of each counter, nil where there is no policy to
// compare with.
func (c current) changes(after *policy.Policy) []policydiff.Change {
	if c.policy == nil {
		return nil
	}
	return policydiff.Between(c.policy, after)
}

// mayBecome refuses a change of what the policy hands to others, unless an
// admin makes it.
func (c current) mayBecome(ctx context.Context, d store.Draft, after *policy.Policy) error {
	switch {
	case d.Wasm == "" && c.revision.Wasm != "":
		return missing(ctx, access.Admin,
			fmt.Sprintf("to leave out the wasm path %s of revision %d", shown(c.revision.Wasm), c.revision.Number))
	case d.Wasm != c.revision.Wasm:
		return missing(ctx, access.Admin,
			fmt.Sprintf("to change the wasm path from %s to %s", orNone(c.revision.Wasm), shown(d.Wasm)))
	case c.revision.Number > 0 && c.policy == nil:
		return missing(ctx, access.Admin,
			fmt.Sprintf("to replace revision %d, whose manage section this release cannot read,", c.revision.Number))
	case !sameManage(c.policy, after):
		return missing(ctx, access.Admin, "to change the manage section")
	case reportsPlain(after) && !reportsPlain(c.policy):
		return missing(ctx, access.Admin, "to have clients' keys reported as they are (report_keys: plain)")
	}
	return nil
}

func orNone(path string) string {
	if path == "" {
		return "none"
	}
	return shown(path)
}

func reportsPlain(p *policy.Policy) bool { return p != nil && p.ReportKeys == policy.ReportPlain }

func sameManage(before, after *policy.Policy) bool { return manageOf(before) == manageOf(after) }

// manageOf is the policy's manage section, zero where there is none.
func manageOf(p *policy.Policy) policy.Manage {
	if p == nil || p.Manage == nil {
		return policy.Manage{}
	}
	return *p.Manage
}
