package policy

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/valyala/fastjson"
)

// ParseJSON reads one JSON document of RFC 8259, strictly. It is stricter than
// the RFC asks in that text must be UTF-8 without byte order mark, surrogates
// must come in pairs, nothing nests deeper than MaxDepth, and the whole is at
// most MaxBytes. Duplicate names and the text of numbers are kept for Read.
//
// The nodes have no positions: the JSON of a plugin's configuration was made
// by a program, on one line. An error has one where it is known.
func ParseJSON(data []byte) (*Node, error) {
	if len(data) > MaxBytes {
		return nil, Errors{TooLarge(len(data))}
	}
	text := string(data)
	if err := precheck(text); err != nil {
		return nil, err
	}
	// The parser takes more than JSON (NaN, Inf, +1, 01, bad escapes); its
	// validator does not.
	if err := fastjson.Validate(text); err != nil {
		return nil, Errors{{Message: "invalid JSON: " + plainMessage(err)}}
	}
	var parser fastjson.Parser
	v, err := parser.Parse(text)
	if err != nil {
		return nil, Errors{{Message: "invalid JSON: " + plainMessage(err)}}
	}
	return nodeOf(v), nil
}

// TooLarge is the problem of a policy of so many bytes.
func TooLarge(bytes int) Problem {
	return Problem{Message: "the policy is " + itoa(int64(bytes)) + " bytes, the most is " + itoa(MaxBytes)}
}

func nodeOf(v *fastjson.Value) *Node {
	n := &Node{}
	switch v.Type() {
	case fastjson.TypeTrue:
		n.Kind, n.Text = Bool, "true"
	case fastjson.TypeFalse:
		n.Kind, n.Text = Bool, "false"
	case fastjson.TypeNumber:
		n.Kind, n.Text = Number, string(v.MarshalTo(nil))
	case fastjson.TypeString:
		n.Kind, n.Text = String, string(v.GetStringBytes())
	case fastjson.TypeArray:
		n.Kind = List
		for _, item := range v.GetArray() {
			n.Items = append(n.Items, nodeOf(item))
		}
	case fastjson.TypeObject:
		n.Kind = Object
		v.GetObject().Visit(func(name []byte, v *fastjson.Value) {
			n.Fields = append(n.Fields, Field{Name: string(name), Value: nodeOf(v)})
		})
	default: // null, which the zero Node is
	}
	return n
}

// precheck refuses what the parser would let pass or be harmed by: it nests
// without end, and takes broken text for text.
func precheck(text string) error {
	if strings.Trim(text, " \t\r\n") == "" {
		return Errors{{Message: "the policy is empty"}}
	}
	if strings.HasPrefix(text, "\uFEFF") {
		return syntaxError(text, 0, "a byte order mark is no part of JSON")
	}
	depth := 0
	for i := 0; i < len(text); {
		switch text[i] {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return syntaxError(text, i, "lists and objects nest more than "+itoa(MaxDepth)+" deep")
			}
		case '}', ']':
			depth--
		case '"':
			end, fault := scanString(text, i+1)
			if fault != "" {
				return syntaxError(text, end, fault)
			}
			i = end
		}
		i++
	}
	return nil
}

// scanString finds the closing quote of the string that begins at i, or the
// place of a fault.
func scanString(text string, i int) (at int, fault string) {
	for i < len(text) {
		c := text[i]
		switch {
		case c == '"':
			return i, ""
		case c < ' ':
			return i, "a control character in a string must be escaped"
		case c == '\\':
			size := escapeSize(text[i:])
			if size == 0 {
				return i, `a \u escape that is half of a surrogate pair`
			}
			i += size
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && size == 1 {
				return i, "text that is not UTF-8"
			}
			i += size
		}
	}
	return len(text), "a string without closing quote"
}

// escapeSize is how many bytes the escape at the start of s takes, 0 for a
// surrogate without its other half. Whether it is valid JSON comes later.
func escapeSize(s string) int {
	r, ok := escapedUnit(s)
	if !ok {
		return min(2, len(s))
	}
	if !utf16.IsSurrogate(r) {
		return 6
	}
	low, ok := escapedUnit(s[6:])
	if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
		return 0
	}
	return 12
}

// escapedUnit decodes \uXXXX at the start of s.
func escapedUnit(s string) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	r := rune(0)
	for i := 2; i < 6; i++ {
		switch c := s[i]; {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

func syntaxError(text string, at int, message string) error {
	line := 1 + strings.Count(text[:at], "\n")
	start := strings.LastIndexByte(text[:at], '\n') + 1
	return Errors{{Line: line, Column: 1 + utf8.RuneCountInString(text[start:at]), Message: "invalid JSON: " + message}}
}

// plainMessage takes the innermost cause out of the parser's nested message
// and keeps it short: it may quote the whole document.
func plainMessage(err error) string {
	const most = 200
	message, tail, hasTail := strings.Cut(err.Error(), "; unparsed tail: ")
	for {
		_, inner, nested := strings.Cut(message, ": ")
		if !nested || !strings.HasPrefix(message, "cannot parse ") {
			break
		}
		message = inner
	}
	if hasTail && tail != `""` && !strings.HasSuffix(message, tail) {
		message += " near " + tail
	}
	if len(message) > most {
		message = strings.ToValidUTF8(message[:most], "") + "…"
	}
	return message
}

// AppendJSON writes n as compact JSON that ParseJSON reads back as the same
// tree. Equal trees give equal bytes.
func AppendJSON(dst []byte, n *Node) []byte {
	switch n.Kind {
	case Bool, Number:
		return append(dst, n.Text...)
	case String:
		return AppendString(dst, n.Text)
	case List:
		dst = append(dst, '[')
		for i, item := range n.Items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendJSON(dst, item)
		}
		return append(dst, ']')
	case Object:
		dst = append(dst, '{')
		for i := range n.Fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendString(dst, n.Fields[i].Name)
			dst = append(dst, ':')
			dst = AppendJSON(dst, n.Fields[i].Value)
		}
		return append(dst, '}')
	default:
		return append(dst, "null"...)
	}
}

// AppendString appends s as a JSON string. It escapes what JSON demands and U+2028 and U+2029, which some
// readers take for line ends. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ' || c == 0x7f || c == 0x2028 || c == 0x2029:
			dst = append(dst, '\\', 'u', hex[c>>12&15], hex[c>>8&15], hex[c>>4&15], hex[c&15])
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return append(dst, '"')
}
