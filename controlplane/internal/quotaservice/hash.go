package quotaservice

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
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
