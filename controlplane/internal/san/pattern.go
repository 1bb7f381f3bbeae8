package san

import (
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Capture is what {id} is in a pattern: as *, and what it stands for is told.
const Capture = "{id}"

// Pattern is a text in which * and {id} stand for one or more characters of a
// segment. A segment of a DNS name ends at ".", one of a URI at "/", one of a
// node id at both.
type Pattern struct {
	Text       string
	Captures   bool   // {id} is in it
	separators string // empty: any text may match, else names of one kind
	regexp     *regexp.Regexp
}

// NamePattern makes a pattern of names in certificates: of DNS names, or of
// URIs if there is a ":" in it.
func NamePattern(text string) (Pattern, error) {
	_, rest, _ := strings.Cut(text, "://")
	host, _, _ := strings.Cut(rest, "/")
	for _, wild := range []string{"*", Capture} {
		if strings.Contains(host, wild) {
			return Pattern{}, errors.New(wild + " in the host of a URI: it may stand within a segment of the path only")
		}
	}
	p, err := compile(text, separators(text))
	p.separators = separators(text)
	return p, err
}

// IDPattern makes a pattern of node ids.
func IDPattern(text string) (Pattern, error) { return compile(text, "./") }

func separators(name string) string {
	if strings.Contains(name, ":") { // which no DNS name has
		return "/"
	}
	return "."
}

func compile(text, separators string) (Pattern, error) {
	p := Pattern{Text: text, Captures: strings.Contains(text, Capture)}
	if strings.Count(text, Capture) > 1 {
		return p, errors.New("{id} is there twice: write * where the text may differ")
	}
	for segment := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
		switch stars := strings.Count(segment, "*"); {
		case stars > 0 && strings.Contains(segment, Capture):
			return p, fmt.Errorf("{id} and * are in one segment, so what {id} stands for is not clear: separate them by %q", separators[:1])
		case stars > 1:
			return p, errors.New("two * in one segment: one is enough")
		}
	}
	inSegment := "[^" + separators + "]+"
	source := strings.NewReplacer(`\*`, inSegment, regexp.QuoteMeta(Capture), "("+inSegment+")").Replace(regexp.QuoteMeta(text))
	var err error
	p.regexp, err = regexp.Compile("^" + source + "$")
	return p, err
}

// Match says whether the text fits, and what {id} stands for in it.
func (p Pattern) Match(text string) (caught string, ok bool) {
	if p.separators != "" && p.separators != separators(text) {
		return "", false
	}
	found := p.regexp.FindStringSubmatch(text)
	switch {
	case found == nil:
		return "", false
	case p.Captures:
		return found[1], true
	}
	return "", true
}

// URIs returns the URIs without a wildcard. One without a scheme could pass for
// a DNS name.
func URIs(c *x509.Certificate) []string {
	var names []string
	for _, u := range c.URIs {
		if text := u.String(); u.IsAbs() && !strings.Contains(text, "*") {
			names = append(names, text)
		}
	}
	return names
}
