package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

const (
	// Current names the newest revision in a path, unless it was aborted. A new proxy may get an older
	// one: see PolicyStatus.
	Current = "current"
	// Previous names the revision that a rollback goes to: the newest one before
	// the current one that some proxy accepted, or else the one before the current
	// one. A current one that is a rollback itself stands where its policy came from.
	Previous = "previous"
)

// Applied answers POST /v1/policies and POST /v1/rollback/{revision}.
type Applied struct {
	store.Summary
	Warnings []policyfile.Problem `json:"warnings"`
	Proxies  int                  `json:"proxies"` // connected now, that the policy is for
	// Replaces is the policy's revision before, 0 if there is none.
	Replaces uint64 `json:"replaces,omitempty"`
	// Changes is what becomes of each counter of the revision before and of this
	// one; null where there is none before, or none that can be read.
	Changes []policydiff.Change `json:"changes"`
	// ProxyWarnings say what the policy takes for granted and connected proxies, by what
	// they tell of themselves, lack.
	ProxyWarnings []string `json:"proxy_warnings,omitempty"`
}

// History answers GET /v1/policies.
type History struct {
	Revisions []store.Summary `json:"revisions"`          // newest first
	Policies  []string        `json:"policies,omitempty"` // all that there are
}

// Revision answers GET /v1/policies/{revision}.
type Revision struct {
	store.Summary
	YAML   string          `json:"yaml"`   // as given
	Policy json.RawMessage `json:"policy"` // as proxies get it
}

// history handles GET /v1/policies?policy=NAME&limit=N.
func (s *server) history(w http.ResponseWriter, r *request) error {
	limit, err := r.number("limit", math.MaxInt32)
	if err != nil {
		return err
	}
	list, err := s.list(r, int(limit))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, History{Revisions: list, Policies: s.XDS.Ledger().Policies()})
	return nil
}

// list returns the newest revisions first, with known damage to their texts.
func (s *server) list(r *request, limit int) ([]store.Summary, error) {
	list, err := s.Store.History(r.Context(), r.policy(), limit)
	damaged := s.XDS.Ledger().Damaged(r.policy())
	for i := range list {
		list[i].Damaged = list[i].Damaged || slices.Contains(damaged, list[i].Number)
	}
	return list, err
}

// standing returns a policy's revisions that were not aborted, the newest first.
func (s *server) standing(ctx context.Context, policy string) ([]store.Summary, error) {
	list, err := s.Store.History(ctx, policy, 0)
	return slices.DeleteFunc(list, aborted), err
}

func aborted(s store.Summary) bool { return s.Rollout.IsAborted() }

// get handles GET /v1/policies/{revision}?policy=NAME.
func (s *server) get(w http.ResponseWriter, r *request) error {
	number, err := s.number(r)
	if err != nil {
		return err
	}
	revision, err := s.revision(r, number)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, Revision{Summary: revision.Summary, YAML: string(revision.YAML), Policy: revision.JSON})
	return nil
}

// revision reads a revision of the policy that the request is about.
func (s *server) revision(r *request, number uint64) (store.Revision, error) {
	revision, err := s.Store.Get(r.Context(), number)
	if asked := r.policy(); err == nil && revision.Policy != asked {
		return store.Revision{}, fmt.Errorf("%w in policy %s: revision %d is of policy %s",
			store.ErrNotFound, shown(asked), number, revision.Policy)
	}
	return revision, err
}

// number reads the revision in a path.
func (s *server) number(r *request) (uint64, error) {
	text := r.PathValue("revision")
	switch text {
	case Current:
		last, err := s.standing(r.Context(), r.policy())
		if err != nil {
			return 0, err
		}
		if len(last) == 0 {
			return 0, fmt.Errorf("%w: %s", store.ErrNotFound, s.nothing(r.policy()))
		}
		return last[0].Number, nil
	case Previous:
		return s.previous(r)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, badRequest("%s is not a revision: give a number from 1, %q or %q", shown(text), Current, Previous)
	}
	return n, nil
}

// nothing says that a policy has no revision, and which have.
func (s *server) nothing(policy string) string {
	names := s.XDS.Ledger().Policies()
	if len(names) == 0 {
		return "nothing has been applied yet"
	}
	return fmt.Sprintf("nothing has been applied to policy %s: there are %s", shown(policy), strings.Join(names, ", "))
}

func (s *server) previous(r *request) (uint64, error) {
	list, err := s.list(r, 0)
	if err != nil {
		return 0, err
	}
	return before(slices.DeleteFunc(list, aborted))
}

// before is the revision before the newest of these: the newest whole one that a proxy has
// accepted, else the newest whole one.
func before(list []store.Summary) (uint64, error) {
	if len(list) < 2 {
		return 0, fmt.Errorf("%w: there is none before the current one", store.ErrNotFound)
	}
	at := list[0] // of a rollback: the revision whose policy it repeats
	for at.RollbackOf != 0 {
		i := slices.IndexFunc(list, func(s store.Summary) bool { return s.Number == at.RollbackOf && !s.Damaged })
		if i < 0 {
			return 0, fmt.Errorf("%w: the current revision repeats revision %d, which is gone or damaged: name a revision",
				store.ErrNotFound, at.RollbackOf)
		}
		at = list[i]
	}
	isLater := func(s store.Summary) bool { return s.Number >= at.Number || s.Damaged }
	earlier := slices.DeleteFunc(slices.Clone(list), isLater)
	switch {
	case len(earlier) > 0:
		i := slices.IndexFunc(earlier, func(s store.Summary) bool { return s.Acked })
		return earlier[max(i, 0)].Number, nil
	case at.Number == list[0].Number:
		return 0, fmt.Errorf("%w: there is none before the current one that is whole", store.ErrNotFound)
	}
	return 0, fmt.Errorf("%w: there is none before revision %d, whose policy the current one repeats: name a revision",
		store.ErrNotFound, at.Number)
}

const (
	// maxBackupTime is how long a caller may take to receive a backup.
	maxBackupTime = 30 * time.Minute
	// maxBackupWait is how long one waits for the backup before it.
	maxBackupWait = 5 * time.Second
)

// backup handles GET /v1/backup: a copy of the store as of now, for sluice store
// restore. One is sent at a time: each takes its own room on the disk.
func (s *server) backup(w http.ResponseWriter, r *request) error {
	free, err := s.backups.take(r.Context())
	if errors.Is(err, errBusy) {
		return later("30", errors.New("another backup is being sent: try again once that has ended"))
	}
	if err != nil {
		return err
	}
	defer free()
	// A backup holds every policy, and the secret that hashes keys in the audit log.
	entry := entryOf(r.Context(), "backup")
	id, err := s.Store.Record(r.Context(), entry)
	if err != nil {
		return err
	}
	outcome := "none sent"
	defer func() { s.setOutcome(r.Context(), id, outcome) }()
	from, size, err := s.Store.Backup(r.Context())
	if err != nil {
		return err
	}
	defer from.Close()
	if err := setWriteDeadline(w, maxBackupTime); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	sent, err := io.Copy(w, from)
	if err != nil {
		outcome = fmt.Sprintf("sent %d of %d bytes", sent, size)
		s.Log.Warn("backup not sent in whole", "audit", id, "bytes", sent, "of", size, "error", err)
		return nil
	}
	outcome = fmt.Sprintf("sent %d bytes", size)
	s.Log.Info("backup sent", "who", access.Who(entry.Who), "from", entry.From, "audit", id, "bytes", size)
	return nil
}
