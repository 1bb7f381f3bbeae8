// Package weaktoken finds the digests of bearer tokens that anyone would guess.
//
// Its invariant: it sees digests only, and compares them with those of its own
// guesses.
package weaktoken

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"strings"
	"sync"
)

//go:embed words.txt
var wordList string

// words are the digests of the words in the list, in the spellings that people
// give them.
var words = sync.OnceValue(func() map[[sha256.Size]byte]bool {
	digests := map[[sha256.Size]byte]bool{}
	for word := range strings.FieldsSeq(wordList) {
		for _, spelling := range []string{word, strings.ToUpper(word), strings.ToUpper(word[:1]) + word[1:]} {
			for _, ending := range []string{"", "1", "12", "123", "1234", "!", "1!", "123!"} {
				digests[sha256.Sum256([]byte(spelling+ending))] = true
			}
		}
	}
	return digests
})

// Weak reports whether a digest, SHA-256 in hexadecimal, is that of a token
// which anyone would guess, and why.
func Weak(sha256hex string) (why string, weak bool) {
	var digest [sha256.Size]byte
	if n, err := hex.Decode(digest[:], []byte(strings.ToLower(sha256hex))); err != nil || n != len(digest) {
		return "", false
	}
	switch {
	case digest == sha256.Sum256(nil):
		return "it is the digest of no text at all", true
	case words()[digest]:
		return "it is the digest of a common word", true
	}
	return "", false
}
