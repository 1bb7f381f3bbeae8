package nodeid

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/san"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/wordfile"
)

// maxLines bounds the file: a stream is held against every line.
const maxLines = 10_000

// Parse reads lines of the form
//
//	SAN ID
//
// where * and {id} stand for one or more characters of a segment (see
// san.Pattern), and {id} for the same ones on both sides; see wordfile for what
// else a line may have. The name of the file is for errors.
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
	if g.san, err = parsePattern(words[0], san.NamePattern); err != nil {
		return grant{}, fmt.Errorf("SAN %q: %w", words[0], err)
	}
	if g.id, err = parsePattern(words[1], san.IDPattern); err != nil {
		return grant{}, fmt.Errorf("id %q: %w", words[1], err)
	}
	if g.san.Captures != g.id.Captures {
		return grant{}, errors.New("{id} is on one side only: write it on both, or * where any text will do")
	}
	return g, nil
}

// check says whether a side of a line can match anything.
func check(text string) error {
	switch {
	case len(text) > MaxBytes:
		return fmt.Errorf("%d bytes, at most %d are allowed", len(text), MaxBytes)
	case !visible(text):
		return errors.New("only visible ASCII, ! to ~, can match")
	case strings.ContainsAny(strings.ReplaceAll(text, san.Capture, ""), "{}"):
		return errors.New("the only word in braces is {id}")
	}
	return nil
}

func parsePattern(text string, parse func(string) (san.Pattern, error)) (san.Pattern, error) {
	if err := check(text); err != nil {
		return san.Pattern{}, err
	}
	return parse(text)
}
