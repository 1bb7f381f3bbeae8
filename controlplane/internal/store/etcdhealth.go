package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// look finds out whether etcd is reached, by a reading that takes most of its members, and
// whether it takes writes again.
func (e *Etcd) look(ctx context.Context) {
	probe := clientv3.OpPut(e.key(metaBucket, probeKey), string(seal(metaBucket, probeKey, nil)))
	for ctx.Err() == nil {
		trying, cancel := context.WithTimeout(ctx, lookWithin)
		_, err := e.client.Get(trying, e.key(metaBucket, formatKey))
		cancel()
		e.mu.Lock()
		if err == nil {
			e.reached = time.Now()
		} else if time.Since(e.reached) < lookWithin {
			err = nil // members may be electing a leader
		}
		e.note(&e.lost, err, e.reached)
		isRefused := err == nil && e.refused.why != nil
		e.mu.Unlock()
		if isRefused {
			_, _ = e.transact(ctx, nil, []clientv3.Op{probe}, nil) // it notes what becomes of it
		}
		pause(ctx, lookEvery)
	}
}

func pause(ctx context.Context, long time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
}

// trouble is why something does not work, and since when.
type trouble struct {
	why   error // nil: it works
	since time.Time
}

// note keeps a trouble. Where it begins or ends, it wakes who waits: what was withheld may be
// done now. The caller holds mu.
func (e *Etcd) note(t *trouble, why error, since time.Time) {
	if (why == nil) != (t.why == nil) {
		t.since = since
		e.wake(&e.change)
	}
	t.why = why
}

// wrote keeps why etcd took nothing until it has taken something. Reading says nothing of
// that: a user may be one that only reads, and a full etcd still answers.
func (e *Etcd) wrote(err error) {
	if code := codeOf(err); err == nil || code == codes.ResourceExhausted || code == codes.PermissionDenied {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.note(&e.refused, err, time.Now())
	}
}

// Healthy implements Store.
func (e *Etcd) Healthy(context.Context) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, t := range []trouble{e.lost, e.refused} {
		if t.why != nil {
			return fmt.Errorf("%w since %s: proxies keep what they have, and nothing can be changed here: %w",
				ErrCutOff, t.since.UTC().Format("15:04:05Z"), explain(t.why))
		}
	}
	return nil
}

func codeOf(err error) codes.Code {
	var refused rpctypes.EtcdError
	if errors.As(err, &refused) {
		return refused.Code()
	}
	return status.Code(err)
}

// explain says what an error of the client means, without what was sent.
func explain(err error) error {
	switch codeOf(err) {
	case codes.Unauthenticated, codes.InvalidArgument:
		if strings.Contains(err.Error(), "authentication failed") || strings.Contains(err.Error(), "user name") {
			return errors.New("user or password is wrong, or etcd wants one: name the user in the URL, and ?password_file=FILE behind it")
		}
	case codes.PermissionDenied:
		return errors.New("etcd's user may not read and write all keys under the store's prefix")
	case codes.ResourceExhausted:
		return fmt.Errorf("etcd takes no more: %w", err)
	default: // as it is
	}
	if errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.DeadlineExceeded {
		return errors.New("etcd does not answer, or too few of its members do, or TLS is missing on one side")
	}
	return err
}
