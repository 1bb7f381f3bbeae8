// Package weaktoken finds the digests of bearer tokens that anyone would guess.
//
// Its invariant: it sees digests only, and compares them with those of its own
// guesses.
package weaktoken

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"slices"
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

// Every text of up to maxTried of these characters is tried. Making the table takes
// 60 ms and 2 MB, once; all of printable ASCII would take four times that.
const (
	maxTried   = 3
	characters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// short holds the first eight bytes of the digests of all these texts, in order.
var short = sync.OnceValue(func() []uint64 {
	table := appendShort(nil, nil)
	slices.Sort(table)
	return table
})

// appendShort appends the digests of every text that continues the given one.
func appendShort(table []uint64, begin []byte) []uint64 {
	for i := range len(characters) {
		text := append(slices.Clip(begin), characters[i])
		digest := sha256.Sum256(text)
		table = append(table, binary.BigEndian.Uint64(digest[:]))
		if len(text) < maxTried {
			table = appendShort(table, text)
		}
	}
	return table
}

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
	if _, found := slices.BinarySearch(short(), binary.BigEndian.Uint64(digest[:])); found {
		return "it is the digest of three letters or digits, or fewer", true
	}
	return "", false
}
