package quotaservice

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"time"
)

// A key has two forms, and one that adds up has a third:
//
//	partKey    names a client to the service: quota.Part.Key, a hash that the proxy made, or a call's Use.Key
//	storeKey   names a client's value of one counter to the store: Swap.Key, a hash of counter and partKey
//	clientKey  of addUp: that hash. Its storeKey is made of clientKey and the window: see beginIn

// hasher makes storeKeys. They say nothing about clients to those who do not know the secret.
type hasher struct {
	secret *[]byte
	mac    hash.Hash
	sum    [sha256.Size]byte
}

func newHasher(secret *[]byte) *hasher {
	return &hasher{secret: secret, mac: hmac.New(sha256.New, *secret)}
}

// withSecret returns h if it has that secret, else a new one. Making one costs more than using it. h may be nil.
func (h *hasher) withSecret(secret *[]byte) *hasher {
	if h != nil && h.secret == secret {
		return h
	}
	return newHasher(secret)
}

// storeKey hashes a partKey after what prefix returned.
func (h *hasher) storeKey(prefix, partKey []byte) (storeKey [16]byte) {
	h.mac.Reset()
	h.mac.Write(prefix)
	h.mac.Write(partKey)
	copy(storeKey[:], h.mac.Sum(h.sum[:0]))
	return storeKey
}

// prefix is what all keys of a counter of a domain have in common.
func prefix(domain string, counter *[16]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(domain)))
	return append(append(b, domain...), counter[:]...)
}

// All services of a store share the secret, which the store keeps.

// Names of what the store keeps by Store.Secret.
const (
	secretName      = "key"
	fingerprintName = "mark"
)

// SecretWait is for Options.SecretWait: it outlasts the next heartbeat of every service and its time at the store.
const SecretWait = HeartbeatEvery + time.Second

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
