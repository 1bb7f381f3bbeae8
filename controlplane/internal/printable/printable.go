// Package printable makes text from elsewhere fit for a terminal, a log line and
// an error.
//
// It must never import another package of this module.
package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns the text with a dot in place of each character that cannot be printed.
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

// JSON returns the JSON text with an escape for each character that escape says.
func JSON(text string, escape func(rune) bool) string {
	if !strings.ContainsFunc(text, escape) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if !escape(r) {
			b.WriteRune(r)
			continue
		}
		for _, half := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, half)
		}
	}
	return b.String()
}

const cutMark = "…"

// Cut returns valid UTF-8 of at most maxBytes bytes, which must be 3 at least. "…" stands for
// the end of a text that is longer.
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
