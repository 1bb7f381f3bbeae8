package nodeid

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/wordfile"
)

// capture stands for text that is the same in the SAN and in the id.
const capture = "{id}"

// maxLines bounds the file: a stream is held against every line.
const maxLines = 10_000

// Parse reads lines of the form
//
//	SAN ID
//
// where * and {id} stand for one or more characters other than "." and "/", and
// {id} for the same ones on both sides; see wordfile for what else a line may
// have. The name of the file is for errors.
func Parse(file string, text []byte) (*Rules, error) {
	r := &Rules{}
	var errs []error
	for line, words := range wordfile.Lines(text) {
		g, err := parseLine(words)
		switch {
		case err == nil:
			r.grants = append(r.grants, g)
		case len(errs) < maxListed:
			errs = append(errs, fmt.Errorf("%s:%d: %w", file, line, err))
		}
	}
	if len(r.grants) > maxLines {
		errs = append(errs, fmt.Errorf("%s: %d lines, at most %d are allowed: let * or {id} stand for what differs", file, len(r.grants), maxLines))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return r, nil
}

func parseLine(words []string) (g grant, err error) {
	if len(words) != 2 {
		return grant{}, fmt.Errorf("%d words instead of 2: write SAN ID, for example {id}.edge.corp {id}", len(words))
	}
	if g.san, err = parsePattern(words[0]); err != nil {
		return grant{}, fmt.Errorf("SAN %q: %w", words[0], err)
	}
	if g.id, err = parsePattern(words[1]); err != nil {
		return grant{}, fmt.Errorf("id %q: %w", words[1], err)
	}
	if g.san.captures != g.id.captures {
		return grant{}, errors.New("{id} is on one side only: write it on both, or * where any text will do")
	}
	return g, nil
}

// pattern is one side of a line.
type pattern struct {
	text     string
	captures bool
	regexp   *regexp.Regexp
}

func parsePattern(text string) (pattern, error) {
	p := pattern{text: text, captures: strings.Contains(text, capture)}
	if len(text) > MaxBytes {
		return p, fmt.Errorf("%d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	if !visible(text) {
		return p, errors.New("only visible ASCII, ! to ~, can match")
	}
	if strings.Count(text, capture) > 1 {
		return p, errors.New("{id} is there twice: write * where the text may differ")
	}
	if strings.ContainsAny(strings.ReplaceAll(text, capture, ""), "{}") {
		return p, errors.New("the only word in braces is {id}")
	}
	if strings.Contains(text, "**") {
		return p, errors.New(`** is no pattern: * stands for text without "." and "/", so write one for each segment`)
	}
	for _, segment := range strings.FieldsFunc(text, separates) {
		if strings.Contains(segment, capture) && strings.Contains(segment, "*") {
			return p, errors.New(`{id} and * are in one segment, so what {id} stands for is not clear: separate them by "." or "/"`)
		}
	}
	const inSegment = "[^./]+"
	source := strings.NewReplacer(`\*`, inSegment, regexp.QuoteMeta(capture), "("+inSegment+")").Replace(regexp.QuoteMeta(text))
	var err error
	p.regexp, err = regexp.Compile("^" + source + "$")
	return p, err
}

func separates(r rune) bool { return r == '.' || r == '/' }

// match says whether the text fits, and what {id} stands for in it.
func (p pattern) match(text string) (caught string, ok bool) {
	found := p.regexp.FindStringSubmatch(text)
	switch {
	case found == nil:
		return "", false
	case p.captures:
		return found[1], true
	}
	return "", true
}
