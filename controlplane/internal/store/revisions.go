package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Append implements Store.
func (s store) Append(ctx context.Context, c Change) ([]Revision, error) {
	var revisions []Revision
	now := time.Now().UTC() // the same each time that commit runs the change
	err := s.backend.commit(ctx, c.ByLeader, func(r records) error {
		revisions = nil
		last := r.sequence(revisionsBucket)
		if last != c.Last {
			return fmt.Errorf("%w: the last revision is %d, not %d", ErrConflict, last, c.Last)
		}
		if err := r.setSequence(revisionsBucket, max(last, c.Above)); err != nil {
			return err
		}
		for i := range c.Drafts {
			revision, err := r.append(&c.Drafts[i], now)
			if err != nil {
				return err
			}
			revisions = append(revisions, revision)
		}
		for i := range c.Steps {
			if err := r.step(&c.Steps[i], c.ByLeader); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, naming("append revision", err)
	}
	s.backend.appended()
	return revisions, nil
}

// append makes a draft a revision.
func (r records) append(d *Draft, now time.Time) (Revision, error) {
	number, err := r.next(revisionsBucket)
	if err != nil {
		return Revision{}, err
	}
	revision := Revision{YAML: bytes.Clone(d.YAML), JSON: bytes.Clone(d.JSON), Summary: Summary{
		Number: number, Policy: cmp.Or(d.Policy, DefaultPolicy), Proxies: d.Proxies,
		File: d.File, Wasm: d.Wasm, RollbackOf: d.RollbackOf, Created: now,
		SHA256: fmt.Sprintf("%x", sha256.Sum256(d.YAML)), Bytes: len(d.YAML), Rollout: d.Rollout,
	}}
	entry := d.Audit
	entry.Revision, entry.Policy = number, revision.Policy
	return revision, errors.Join(
		r.set(metaBucket, formatKey, []byte(format)),
		r.putJSON(revisionsBucket, key(number), revision.Summary),
		r.put(yamlBucket, key(number), d.YAML),
		r.put(jsonBucket, key(number), d.JSON),
		r.appendEntry(&entry),
	)
}

// step changes how the rollout of a revision stands; see Change.ByLeader.
func (r records) step(s *Step, byLeader bool) error {
	var of Summary
	if err := r.getJSON(revisionsBucket, key(s.Revision), &of); err != nil {
		return err
	}
	if !of.Rollout.Lasts() {
		return fmt.Errorf("%w: no canary of revision %d lasts", ErrConflict, s.Revision)
	}
	if byLeader && s.State == Promoted && r.value(nackedBucket, key(s.Revision)) != nil {
		return fmt.Errorf("%w: a proxy has refused revision %d", ErrConflict, s.Revision)
	}
	of.Rollout.State, of.Rollout.Why = s.State, s.Why
	entry := s.Audit
	entry.Revision, entry.Policy = s.Revision, cmp.Or(of.Policy, DefaultPolicy)
	return errors.Join(r.putJSON(revisionsBucket, key(s.Revision), of), r.appendEntry(&entry))
}

// Last implements Store.
func (s store) Last(context.Context) (last uint64, err error) {
	err = s.read("read the last number", func(r records) error {
		last = r.sequence(revisionsBucket)
		return nil
	})
	return last, err
}

// Get implements Store.
func (s store) Get(_ context.Context, number uint64) (revision Revision, err error) {
	err = s.read(fmt.Sprintf("get revision %d", number), func(r records) (err error) {
		revision.Summary, err = r.summary(number)
		if err != nil {
			return err
		}
		revision.YAML, err = r.get(yamlBucket, key(number))
		if err != nil {
			return err
		}
		revision.JSON, err = r.get(jsonBucket, key(number))
		return err
	})
	if err != nil {
		return Revision{}, err
	}
	return revision, nil
}

// History implements Store.
func (s store) History(_ context.Context, policy string, limit int) ([]Summary, error) {
	list := []Summary{}
	err := s.read("list revisions", func(r records) error {
		for number := range r.newest(revisionsBucket, 0) {
			s, err := r.summary(number)
			if err != nil {
				s = Summary{Number: number, Damaged: true}
			}
			if policy != "" && s.Policy != policy && !s.Damaged {
				continue
			}
			list = append(list, s)
			if len(list) == limit {
				break
			}
		}
		return nil
	})
	return list, err
}

// summary reads a revision's summary. A damaged mark is none.
func (r records) summary(number uint64) (s Summary, err error) {
	k := key(number)
	if err := r.getJSON(revisionsBucket, k, &s); err != nil {
		return s, err
	}
	_, refused := r.get(nackedBucket, k)
	_, accepted := r.get(ackedBucket, k)
	s.Policy = cmp.Or(s.Policy, DefaultPolicy)
	s.Acked = accepted == nil
	s.Nacked = refused == nil
	return s, nil
}

// Drop implements Store. The file does not shrink: what comes next uses the
// pages again. A revision that is not the newest never becomes it again, so that is
// checked before.
func (s store) Drop(ctx context.Context, numbers []uint64) error {
	list, err := s.History(ctx, "", 0)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, of := range list {
		isNewest := i == 0 || !of.Damaged && !seen[of.Policy]
		seen[of.Policy] = true
		if isNewest && slices.Contains(numbers, of.Number) {
			return fmt.Errorf("drop revisions: revision %d is the newest", of.Number)
		}
	}
	return s.write(ctx, "drop revisions", func(r records) (err error) {
		for _, number := range numbers {
			err = errors.Join(err, r.delete(key(number), revisionBuckets...))
		}
		return err
	})
}

// SaveReply implements Store.
func (s store) SaveReply(ctx context.Context, reply Reply) error {
	what := fmt.Sprintf("save reply to revision %d", reply.Revision)
	return s.write(ctx, what, func(r records) error {
		marks := nackedBucket
		if reply.Accepted {
			marks = ackedBucket
		}
		known, k := Proxy{}, reply.ID().key()
		_ = r.getJSON(proxiesBucket, k, &known) // a damaged one counts as unknown
		return errors.Join(r.put(marks, key(reply.Revision), nil), r.putJSON(proxiesBucket, k, known.After(reply)))
	})
}

// Proxies implements Store. A damaged one counts as unknown.
func (s store) Proxies(context.Context) ([]Proxy, error) {
	list := []Proxy{}
	err := s.read("list proxies", func(r records) error {
		for k := range r.descend(proxiesBucket, nil) {
			var p Proxy
			if r.getJSON(proxiesBucket, k, &p) == nil {
				list = append(list, p)
			}
		}
		return nil
	})
	return list, err
}

// Forget implements Store.
func (s store) Forget(ctx context.Context, id Identity) error {
	return s.write(ctx, "forget proxy", func(r records) error { return r.delete(id.key(), proxiesBucket) })
}
