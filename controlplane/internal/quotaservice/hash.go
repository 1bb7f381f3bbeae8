package quotaservice

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
)

// A key has two forms, and one that adds up has a third:
//
//	partKey    names a client to the service: quota.Part.Key, a hash that the proxy made, or a call's Hits.Key
//	storeKey   names a client's value of one counter to the store: Swap.Key, a hash of counter and partKey
//	clientKey  of addUp: that hash. Its storeKey is made of clientKey and the window: see addUpAt

// hasher makes storeKeys. They say nothing about clients to those who do not know the secret.
type hasher struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

func newHasher(secret []byte) *hasher { return &hasher{mac: hmac.New(sha256.New, secret)} }

// storeKey hashes a partKey after what prefix returned.
func (h *hasher) storeKey(prefix, partKey []byte) (storeKey [16]byte) {
	h.mac.Reset()
	h.mac.Write(prefix)
	h.mac.Write(partKey)
	copy(storeKey[:], h.mac.Sum(h.sum[:0]))
	return storeKey
}

// hashers are kept for the next calls: making one costs more than using it.
type hashers struct{ pool sync.Pool }

type keptHasher struct {
	*hasher
	secret *[]byte
}

func (hs *hashers) of(secret *[]byte) *keptHasher {
	last, _ := hs.pool.Get().(*keptHasher)
	return hasherOf(secret, last)
}

// hasherOf returns the last hasher if it is of the secret, else a new one. The last may be nil.
func hasherOf(secret *[]byte, last *keptHasher) *keptHasher {
	if last != nil && last.secret == secret {
		return last
	}
	return &keptHasher{newHasher(*secret), secret}
}

// prefix is what all keys of a counter of a domain have in common.
func prefix(domain string, counter *[16]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(domain)))
	return append(append(b, domain...), counter[:]...)
}
