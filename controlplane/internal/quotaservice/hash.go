package quotaservice

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
)

// hasher makes the keys under which the store keeps the keys of counters. They say
// nothing about clients to those who do not know the secret.
type hasher struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

func newHasher(secret []byte) *hasher { return &hasher{mac: hmac.New(sha256.New, secret)} }

// key hashes a key after what prefix returned.
func (h *hasher) key(prefix, key []byte) (id [16]byte) {
	h.mac.Reset()
	h.mac.Write(prefix)
	h.mac.Write(key)
	copy(id[:], h.mac.Sum(h.sum[:0]))
	return id
}

// hashers are kept for the next calls: making one costs more than using it.
type hashers struct{ pool sync.Pool }

type keptHasher struct {
	*hasher
	secret *[]byte
}

func (hs *hashers) of(secret *[]byte) *keptHasher {
	if h, ok := hs.pool.Get().(*keptHasher); ok && h.secret == secret {
		return h
	}
	return &keptHasher{newHasher(*secret), secret}
}

// prefix is what all keys of a counter of a domain have in common.
func prefix(domain string, counter *[16]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(domain)))
	return append(append(b, domain...), counter[:]...)
}
