// Package sha256 is SHA-256 of FIPS 180-4 and HMAC of FIPS 198-1, for the few bytes of
// tokens and keys: crypto/sha256 brings four other hashes, AES and a random generator
// with it, a thirtieth of the module.
package sha256

import (
	"encoding/binary"
	"math/bits"
)

// Sum is the hash of a message.
func Sum(message []byte) [32]byte { return finish(start, message, 0) }

// HMAC is the message authentication code of a message under a secret of at most 64
// bytes.
func HMAC(secret, message []byte) [32]byte {
	inner := finish(keyed(secret, 0x36), message, 64)
	return finish(keyed(secret, 0x5c), inner[:], 64)
}

// keyed is the state after a block that is made of the secret.
func keyed(secret []byte, pad byte) [8]uint32 {
	var b [64]byte
	copy(b[:], secret)
	for i := range b {
		b[i] ^= pad
	}
	h := start
	block(&h, b[:])
	return h
}

// finish hashes the rest of a message, after so many bytes.
func finish(h [8]uint32, rest []byte, before int) (sum [32]byte) {
	bits := uint64(before+len(rest)) * 8
	for ; len(rest) >= 64; rest = rest[64:] {
		block(&h, rest[:64])
	}
	var last [128]byte
	end := 64
	if last[copy(last[:], rest)] = 0x80; len(rest) >= 56 {
		end = 128
	}
	binary.BigEndian.PutUint64(last[end-8:], bits)
	for b := last[:end]; len(b) > 0; b = b[64:] {
		block(&h, b[:64])
	}
	for i, word := range h {
		binary.BigEndian.PutUint32(sum[4*i:], word)
	}
	return sum
}

func block(h *[8]uint32, b []byte) {
	var w [64]uint32
	for i := range 16 {
		w[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	for i := 16; i < 64; i++ {
		x, y := w[i-15], w[i-2]
		w[i] = w[i-16] + w[i-7] +
			(bits.RotateLeft32(x, -7) ^ bits.RotateLeft32(x, -18) ^ x>>3) +
			(bits.RotateLeft32(y, -17) ^ bits.RotateLeft32(y, -19) ^ y>>10)
	}
	v := *h
	for i := range 64 {
		a, e := v[0], v[4]
		t1 := v[7] + round[i] + w[i] + (e&v[5] ^ ^e&v[6]) +
			(bits.RotateLeft32(e, -6) ^ bits.RotateLeft32(e, -11) ^ bits.RotateLeft32(e, -25))
		t2 := (a&v[1] ^ a&v[2] ^ v[1]&v[2]) +
			(bits.RotateLeft32(a, -2) ^ bits.RotateLeft32(a, -13) ^ bits.RotateLeft32(a, -22))
		v = [8]uint32{t1 + t2, a, v[1], v[2], v[3] + t1, e, v[5], v[6]}
	}
	for i := range h {
		h[i] += v[i]
	}
}

// The first 32 bits of the fractional parts of the square roots of the first 8
// primes, and of the cube roots of the first 64.
var (
	start = [8]uint32{
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
	}
	round = [64]uint32{
		0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
		0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
		0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
		0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
		0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
		0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
		0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
		0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
	}
)
