package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

const (
	// maxSummary bounds the text of an audit entry about a revision.
	maxSummary = 1024

	defaultAudit = 100
	// MaxAudit is the most entries that one answer holds.
	MaxAudit = 1000
)

// Audit answers GET /v1/audit.
type Audit struct {
	Entries []store.Entry `json:"entries"` // newest first
}

// audit handles GET /v1/audit?policy=NAME&limit=N&before=ID, by default of all policies.
func (s *server) audit(w http.ResponseWriter, r *request) error {
	limit, err := r.number("limit", MaxAudit)
	if err != nil {
		return err
	}
	before, err := r.number("before", math.MaxUint64)
	if err != nil {
		return err
	}
	list, err := s.Store.Audit(r.Context(), r.get("policy"), int(cmp.Or(limit, defaultAudit)), before)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, Audit{Entries: list})
	return nil
}

// entryOf is an entry of the caller.
func entryOf(ctx context.Context, action string) store.Entry {
	caller := access.FromContext(ctx)
	return store.Entry{Who: caller.Name, From: caller.Address, Action: action}
}

// entry says who makes a judged policy the next revision, and in short what changes.
func entry(ctx context.Context, before newest, j judged, changes []policydiff.Change) store.Entry {
	d := &j.draft
	e := entryOf(ctx, "apply")
	var parts []string
	if d.RollbackOf > 0 {
		e.Action = "rollback"
		parts = append(parts, fmt.Sprintf("to revision %d", d.RollbackOf))
	}
	if d.Rollout != nil {
		parts = append(parts, fmt.Sprintf("canary of %g%%", d.Rollout.Percent))
	}
	parts = append(parts, lines(before.revision.YAML, d.YAML))
	if before.revision.Wasm != d.Wasm {
		parts = append(parts, fmt.Sprintf("wasm %s → %s", orNone(before.revision.Wasm), orNone(d.Wasm)))
	}
	if !before.revision.Proxies.Equal(d.Proxies) {
		parts = append(parts, "for other proxies")
	}
	if manageOf(before.policy) != manageOf(j.policy) {
		parts = append(parts, "manage changed")
	}
	for _, change := range changes {
		if !change.Keeps {
			parts = append(parts, change.Text)
		}
	}
	e.Text = shorten(parts)
	return e
}

// lines counts the lines that only one of two texts has. It ignores their order: to
// compare that takes seconds for texts that are made for it.
func lines(before, after []byte) string {
	if bytes.Equal(before, after) {
		return "the same text"
	}
	surplus := map[string]int{}
	for line := range bytes.Lines(after) {
		surplus[string(line)]++
	}
	for line := range bytes.Lines(before) {
		surplus[string(line)]--
	}
	added, removed := 0, 0
	for _, n := range surplus {
		added += max(n, 0)
		removed += max(-n, 0)
	}
	if added+removed == 0 {
		return "lines moved"
	}
	return fmt.Sprintf("lines: %d added, %d removed", added, removed)
}

// shorten joins what fits and counts the rest.
func shorten(parts []string) string {
	var text strings.Builder
	for i, part := range parts {
		if text.Len()+len(part) > maxSummary {
			fmt.Fprintf(&text, "; and %d more", len(parts)-i)
			break
		}
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(part)
	}
	return text.String()
}

// record puts an operation that changes something into the audit log before it is done.
// setOutcome adds its outcome.
func (s *server) record(ctx context.Context, a asked) (setOutcome func(outcome string), err error) {
	if !a.op.Changes {
		return func(string) {}, nil
	}
	text, err := s.auditText(ctx, a.query)
	if err != nil {
		return nil, err
	}
	entry := entryOf(ctx, "counters "+a.op.Name)
	entry.Policy, entry.Text = a.policy, text
	id, err := s.Store.Record(ctx, entry)
	if err != nil {
		return nil, err
	}
	s.Log.Info("counters", "op", a.op.Name, "who", access.Who(entry.Who), "from", entry.From, "audit", id)
	return func(text string) {
		if ctx.Err() != nil {
			text += ", the caller disconnected before it was done"
		}
		s.setOutcome(ctx, id, text)
	}, nil
}

// outcome counts the proxies that did it.
func outcome(rows []manage.Row) string {
	n := 0
	for _, r := range rows {
		if r.Error == "" {
			n++
		}
	}
	if len(rows) == 1 {
		return fmt.Sprintf("%d of 1 proxy", n)
	}
	return fmt.Sprintf("%d of %d proxies", n, len(rows))
}

// setOutcome adds the outcome of a recorded request, even if its caller has gone.
func (s *server) setOutcome(ctx context.Context, id uint64, outcome string) {
	if err := s.Store.SetOutcome(context.WithoutCancel(ctx), id, outcome); err != nil {
		s.Log.Error("set the outcome of an audit entry", "audit", id, "error", err)
	}
}

// auditText says for the audit log what an operation was done to. Keys are hashed:
// equal ones can be recognized, and none can be guessed without the store's secret.
func (s *server) auditText(ctx context.Context, query url.Values) (string, error) {
	var parts []string
	for _, name := range []string{"rule", "key", "n", "window"} {
		value := strconv.Quote(query.Get(name))
		switch {
		case len(query[name]) == 0:
			continue
		case name == "key":
			secret, err := s.Store.Secret(ctx)
			if err != nil {
				return "", err
			}
			value = hashKey(secret, query[name])
		case name == "n":
			value = query.Get(name)
		}
		parts = append(parts, name+"="+value)
	}
	return strings.Join(parts, " "), nil
}

func hashKey(secret []byte, key []string) string {
	h := hmac.New(sha256.New, secret)
	for _, part := range key {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return "hmac:" + hex.EncodeToString(h.Sum(nil)[:16])
}
