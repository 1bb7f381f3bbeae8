package quotaservice

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
)

// All services of a store share the secret, which the store keeps. Users know it as the key of the quota store: the
// flag --quota-key-file has it, and messages and secretName say key. It has nothing to do with the keys of counters.

// Names of what the store keeps by Store.Secret.
const (
	secretName      = "key"
	fingerprintName = "mark"
)

// SecretWait is for Options.SecretWait: it outlasts the next heartbeat of every service and its time at the store.
const SecretWait = HeartbeatEvery + time.Second

// agree takes the secret that all services of the store share. It is mine if the store has none,
// because it is new or has lost it. The store also has a fingerprint of the secret. A service
// with another secret does not start, or counts nothing while the fingerprint differs.
func (s *Service) agree(ctx context.Context, mine func() []byte) (err error) {
	secret := s.o.Secret
	if secret == nil {
		secret, err = s.o.Store.Secret(ctx, secretName, mine)
		if err != nil {
			return fmt.Errorf("read the key of the quota store: %w", err)
		}
	}
	fingerprint := newHasher(&secret).storeKey(nil, []byte("which key"))
	kept, err := s.o.Store.Secret(ctx, fingerprintName, func() []byte { return fingerprint[:] })
	switch {
	case err != nil:
		return fmt.Errorf("compare the key with that of the quota store: %w", err)
	case !bytes.Equal(kept, fingerprint[:]):
		s.apart.Store(true)
		return errOtherSecret
	}
	s.apart.Store(false)
	if old := s.secret.Load(); old == nil || !bytes.Equal(*old, secret) {
		s.secret.Store(&secret)
		if old != nil {
			s.o.Log.Warn("the store has lost its state and another key since: what was counted in between is lost")
		}
	}
	return nil
}

// firstSecret makes a secret for a store that has none. It waits before: if the store has lost
// its state, the services that run store their secret at their next heartbeat.
func (s *Service) firstSecret(ctx context.Context) []byte {
	if s.o.SecretWait > 0 {
		s.o.Log.Info("the quota store has no secret yet: the start waits for services that may know it",
			"for", s.o.SecretWait)
		select {
		case <-time.After(s.o.SecretWait):
		case <-ctx.Done():
		}
	}
	fresh := make([]byte, sha256.Size)
	_, _ = rand.Read(fresh) // never fails
	return fresh
}

// errOtherSecret would let each service of a store count apart.
var errOtherSecret = errors.New("the services of this quota store have another key: " +
	"all need the same --quota-key-file, or none")
