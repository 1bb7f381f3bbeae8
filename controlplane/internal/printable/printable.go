// Package printable makes text from elsewhere fit for a terminal, a log line and
// an error.
//
// It must never import another package of this module.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns the text with a dot for each character that cannot be printed.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, text)
}

// Is reports whether the text is UTF-8 that can be printed as it is.
func Is(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

const cutMark = "…"

// Cut returns valid UTF-8 of at most maxBytes bytes, from 3 on. A text that is longer
// ends with "…" instead.
func Cut(text string, maxBytes int) string {
	if len(text) <= maxBytes && utf8.ValidString(text) {
		return text
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxBytes+utf8.UTFMax)], "\uFFFD")
	if len(text) <= maxBytes {
		return text
	}
	end := maxBytes - len(cutMark)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cutMark
}
