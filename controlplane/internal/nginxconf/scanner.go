package nginxconf

import "strings"

// token is a word, or what ends a directive, a block or the file.
type token struct {
	kind kind
	text string
}

type kind uint8

const (
	word kind = iota
	beginOfBlock
	endOfBlock
	endOfDirective
	endOfFile
)

// scanner splits the text of one file.
type scanner struct {
	file string
	text string // what is left
	line int
}

func (s *scanner) error(message string) error { return &Error{s.file, s.line, message} }

// take takes bytes of the text and counts the lines.
func (s *scanner) take(n int) (taken string) {
	taken = s.text[:n]
	s.text = s.text[n:]
	s.line += strings.Count(taken, "\n")
	return taken
}

// next reads the next token.
func (s *scanner) next() (token, error) {
	s.skipSpace()
	if s.text == "" {
		return token{kind: endOfFile}, nil
	}
	switch s.text[0] {
	case ';':
		return token{endOfDirective, s.take(1)}, nil
	case '{':
		return token{beginOfBlock, s.take(1)}, nil
	case '}':
		return token{endOfBlock, s.take(1)}, nil
	case '"', '\'':
		return s.quoted()
	}
	return token{word, s.plain()}, nil
}

const spaces = " \t\r\n"

// skipSpace skips spaces and comments.
func (s *scanner) skipSpace() {
	for {
		rest := strings.TrimLeft(s.text, spaces)
		s.take(len(s.text) - len(rest))
		if !strings.HasPrefix(rest, "#") {
			return
		}
		comment, _, _ := strings.Cut(rest, "\n")
		s.take(len(comment))
	}
}

// plain reads a word without quotation marks. A } does not end it.
func (s *scanner) plain() string {
	n := 0
	for n < len(s.text) && !strings.ContainsRune(spaces+";{", rune(s.text[n])) {
		if s.text[n] == '\\' || strings.HasPrefix(s.text[n:], "${") {
			n++ // the next one is a part of the word
		}
		n++
	}
	return unescaped(s.take(min(n, len(s.text))))
}

// quoted reads a word in quotation marks.
func (s *scanner) quoted() (token, error) {
	mark, n := s.text[0], 1
	for n < len(s.text) && s.text[n] != mark {
		if s.text[n] == '\\' {
			n++
		}
		n++
	}
	if n >= len(s.text) {
		return token{}, s.error("a quotation mark " + string(mark) + " has no end")
	}
	text := unescaped(s.take(n + 1)[1:n])
	switch {
	case strings.HasPrefix(s.text, ")"): // of an if
		s.take(1)
	case s.text != "" && !strings.ContainsRune(spaces+";{", rune(s.text[0])):
		return token{}, s.error("there must be a space or a ; behind the quotation mark " + string(mark))
	}
	return token{word, text}, nil
}

// escapes are what nginx replaces in a word. Any other backslash stays.
var escapes = strings.NewReplacer(`\"`, `"`, `\'`, `'`, `\\`, `\`, `\t`, "\t", `\r`, "\r", `\n`, "\n")

func unescaped(word string) string { return escapes.Replace(word) }

// skipLua skips a block of Lua, up to the } that ends it.
func (s *scanner) skipLua() error {
	unended := s.error("this block of Lua has no } at its end")
	for depth := 1; s.text != ""; {
		switch s.take(1) {
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
	return unended
}
