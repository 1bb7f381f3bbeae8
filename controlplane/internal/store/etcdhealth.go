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
			e.since = time.Now()
		} else if time.Since(e.since) < lookWithin {
			err = nil // members may be electing a leader
		}
		if (err == nil) != (e.lost == nil) {
			e.wake(&e.change) // what was withheld may be done now
		}
		e.lost = err
		isRefused := err == nil && e.refused != nil
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

// note keeps why etcd took nothing until it has taken something. Reading says nothing of
// that: a user may be one that only reads, and a full etcd still answers.
func (e *Etcd) note(written error) {
	if code := codeOf(written); written != nil && code != codes.ResourceExhausted && code != codes.PermissionDenied {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if (written == nil) != (e.refused == nil) {
		e.from = time.Now()
		e.wake(&e.change)
	}
	e.refused = written
}

// Healthy implements Store.
func (e *Etcd) Healthy(context.Context) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	why, since := e.lost, e.since
	if why == nil {
		why, since = e.refused, e.from
	}
	if why == nil {
		return nil
	}
	return fmt.Errorf("%w since %s: proxies keep what they have, and nothing can be changed here: %w",
		ErrCutOff, since.UTC().Format("15:04:05Z"), explain(why))
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
