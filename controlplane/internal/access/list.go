package access

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/weaktoken"
)

// Digest is that of a token, as an access file holds it.
type Digest [sha256.Size]byte

// DigestOf returns a token's digest, false for a text that is too long for a token.
func DigestOf(token string) (Digest, bool) {
	if len(token) > MaxToken {
		return Digest{}, false
	}
	return sha256.Sum256([]byte(token)), true
}

// List is what an access file says. The zero List knows nobody.
type List struct {
	tokens       map[Digest]Caller
	certificates []certificate
}

// certificate gives roles to the certificates with a matching SAN.
type certificate struct {
	san    pattern
	caller Caller // without a name
}

const (
	// maxName bounds names and SANs, for they go into every audit entry.
	maxName = 256
	// MaxToken bounds the tokens that are hashed, here and in the filter.
	MaxToken = 1 << 10

	wantLine = "give token NAME ROLE SHA256HEX or certificate SAN ROLE"
)

// ParseList reads an access file: a token or a certificate a line; see eachLine
// for what else a line may have.
//
//	token NAME ROLE SHA256HEX
//	certificate SAN ROLE
//
// where ROLE is as ParseRoles reads it.
//
// An error joins every problem, each with its line. It never repeats what may
// be a token.
func ParseList(file string, text []byte) (*List, error) {
	r := reader{list: List{tokens: map[Digest]Caller{}}, first: map[string]int{}}
	err := eachLine(file, text, math.MaxInt, func(line int, words []string) error {
		r.line = line
		return r.read(words)
	})
	if err != nil {
		return nil, err
	}
	return &r.list, nil
}

// reader is an access file being read.
type reader struct {
	list  List
	line  int
	first map[string]int // lines of what may be there once
}

func (r *reader) read(words []string) error {
	switch {
	case words[0] == "token" && len(words) == 4:
		return r.token(words[1], words[2], words[3])
	case words[0] == "certificate" && len(words) == 3:
		return r.certificate(words[1], words[2])
	case words[0] == "token" || words[0] == "certificate":
		return fmt.Errorf("a %s with %d fields: %s", words[0], len(words)-1, wantLine)
	}
	return errors.New("neither token nor certificate: " + wantLine)
}

// before is the line that has it already, 0 if none has.
func (r *reader) before(what string) int {
	line := r.first[what]
	r.first[what] = cmp.Or(line, r.line)
	return line
}

func (r *reader) token(name, roleName, sum string) error {
	role, policies, err := ParseRoles(roleName)
	if err != nil {
		return err
	}
	if len(name) > maxName || !isVisible(name) {
		return fmt.Errorf("a name that is not of up to %d printable ASCII characters", maxName)
	}
	if line := r.before("token " + name); line > 0 {
		return fmt.Errorf("token %s is on line %d already: give each a name of its own", name, line)
	}
	digest, err := hex.DecodeString(sum)
	if err != nil || len(digest) != sha256.Size {
		return fmt.Errorf("token %s: SHA256HEX is not 64 hexadecimal digits: "+
			"give what printf %%s TOKEN | sha256sum prints", name)
	}
	if why, weak := weaktoken.Weak(sum); weak {
		return fmt.Errorf("token %s: anyone would guess it, %s: make one with openssl rand -hex 32", name, why)
	}
	if line := r.before(string(digest)); line > 0 {
		return fmt.Errorf("token %s has the digest of line %d: give each a token of its own", name, line)
	}
	r.list.tokens[Digest(digest)] = Caller{Name: "token " + name, Role: role, Policies: policies}
	return nil
}

func (r *reader) certificate(name, roleName string) error {
	role, policies, err := ParseRoles(roleName)
	if err != nil {
		return err
	}
	p, err := callerPattern(name)
	if err != nil {
		return fmt.Errorf("certificate %q: %w", name[:min(len(name), maxName)], err)
	}
	if line := r.before("certificate " + p.text); line > 0 {
		return fmt.Errorf("certificate %s is on line %d already", name, line)
	}
	r.list.certificates = append(r.list.certificates, certificate{p, Caller{Role: role, Policies: policies}})
	return nil
}

// MapsCertificates says whether any certificate has a role.
func (l *List) MapsCertificates() bool { return len(l.certificates) > 0 }

// callerPattern reads the SAN of a line: a DNS name or a URI, where * stands for
// text within a segment.
func callerPattern(text string) (pattern, error) {
	const want = "give a DNS name such as ci.ops.corp or a URI such as spiffe://corp/ns/ops/sa/ci"
	if len(text) > maxName {
		return pattern{}, fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), maxName)
	}
	if !strings.Contains(text, "://") {
		text = strings.ToLower(text)
		for label := range strings.SplitSeq(text, ".") {
			if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_*") != "" {
				return pattern{}, errors.New("it is neither a DNS name nor a URI: " + want)
			}
		}
	} else if u, err := url.Parse(text); err != nil || !isPlainURI(u) || u.String() != text {
		return pattern{}, errors.New("it is not a URI of scheme, host and path: " + want)
	}
	return namePattern(text)
}

// Token returns the caller that bears a token. The time of the search depends on the
// digest, which says nothing about the token.
func (l *List) Token(token string) (Caller, bool) {
	digest, ok := DigestOf(token)
	c, known := l.tokens[digest]
	return c, ok && known
}

// eachLine reads each line that has words, and joins what is wrong with the first of them. Both
// files are written by people: with empty lines, comments from a word that starts with # to the
// end of the line, line ends of any system and a byte order mark.
func eachLine(file string, text []byte, maxProblems int, read func(line int, words []string) error) error {
	var problems []error
	number := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		number++
		words := strings.Fields(string(line))
		if i := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(word, "#") }); i >= 0 {
			words = words[:i]
		}
		if len(words) == 0 || len(problems) == maxProblems {
			continue
		}
		if err := read(number, words); err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %w", file, number, err))
		}
	}
	return errors.Join(problems...)
}
