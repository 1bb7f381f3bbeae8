package request

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Cookie returns the value of a cookie. All spellings that Go's net/http, Node's cookie, Django
// and Python's http.cookies read as the same value give the same value here. If some of them
// read another cookie than others, the value is empty, so that no client chooses its key by
// that.
func (r *Request) Cookie(number int) (string, bool) {
	c := &r.cookies[number]
	if !r.knows(&c.lazy) {
		value, present := r.findCookie(c.name)
		r.set(&c.lazy, value, present)
	}
	return c.value, c.present
}

// findCookie looks through all cookie headers. The proxy joins them with a comma, which may
// also be part of a cookie's value.
func (r *Request) findCookie(name string) (string, bool) {
	all, _ := r.JoinedHeader(r.cookieHeader)
	if strings.IndexByte(all, ',') >= 0 {
		all = strings.Join(r.Values(r.cookieHeader), ";")
	}
	return cookieOf(all, name)
}

// cookieOf returns the value of a cookie, or an empty one if servers disagree: for Flask and
// Python's http.cookies, a ";" in quotes does not end a cookie.
func cookieOf(header, name string) (value string, found bool) {
	value, found = cookieIn(header, name, false)
	if strings.IndexByte(header, '"') >= 0 {
		other, isThere := cookieIn(header, name, true)
		if isThere != found || other != value {
			return "", true
		}
	}
	return value, found
}

// cookieIn returns the value of the first cookie of a name. A cookie that Go ignores, or whose
// name differs in case (ASP.NET), counts only if there is no other. If quoted is set, a ";" in
// quotes does not end a cookie.
func cookieIn(header, name string, quoted bool) (value string, found bool) {
	for more := true; more; {
		end := strings.IndexByte(header, ';')
		if quoted {
			end = quotedEnd(header, end)
		}
		pair := header
		more = end >= 0
		if more {
			pair, header = header[:end], header[end+1:]
		}
		key, text, isPair := strings.Cut(pair, "=")
		if !isPair || !strings.EqualFold(strippedCookie(key), name) {
			continue
		}
		isFirst := strings.Trim(key, blanks) == name && isSoundCookie(strings.TrimRight(text, blanks))
		if isFirst || !found {
			value, found = cookieValue(strippedCookie(text)), true
		}
		if isFirst {
			break
		}
	}
	return value, found
}

// quotedEnd returns where the header's first pair ends if its whole value is in quotes: at the
// next ";", or -1 for the end of the header. Else it returns end.
func quotedEnd(header string, end int) int {
	pair := header
	if end >= 0 {
		pair = header[:end]
	}
	begin := strings.IndexByte(pair, '=') + 1
	if begin == 0 {
		return end
	}
	begin = pastCookieSpaces(header, begin)
	if begin == len(header) || header[begin] != '"' {
		return end
	}
	for i := begin + 1; i < len(header); i++ {
		switch header[i] {
		case '\\':
			i++
		case '"':
			switch i = pastCookieSpaces(header, i+1); {
			case i == len(header):
				return -1
			case header[i] == ';':
				return i
			}
			return end
		}
	}
	return end
}

func pastCookieSpaces(text string, i int) int {
	for i < len(text) && isCookieSpace(text[i]) {
		i++
	}
	return i
}

func isCookieSpace(c byte) bool { return c == ' ' || c == '\t' || c == 0x85 || c == 0xa0 }

// strippedCookie drops what upstreams strip from names and values: blanks, and what Django
// (0x85, 0xa0) and older releases of Node's cookie (0xa0) also take for blanks.
func strippedCookie(text string) string {
	for text != "" && isCookieSpace(text[0]) {
		text = text[1:]
	}
	for text != "" && isCookieSpace(text[len(text)-1]) {
		text = text[:len(text)-1]
	}
	return text
}

// isSoundCookie reports whether Go accepts a value: it ignores a cookie with any other. Go strips
// blanks behind a value, and not before it.
func isSoundCookie(text string) bool {
	if n := len(text); n >= 2 && text[0] == '"' && text[n-1] == '"' {
		text = text[1 : n-1]
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// cookieValue drops quotes, and resolves Python's escapes in them. Older releases of Node's
// cookie drop quotes even if only the first is there. Without quotes, Python ends a value at a
// blank. Node resolves the escapes of URLs in any value.
func cookieValue(text string) string {
	if strings.HasPrefix(text, `"`) {
		text = unslashed(text[1:max(1, len(text)-1)])
	} else if end := strings.IndexAny(text, blanks); end >= 0 {
		text = text[:end]
	}
	return policy.Unescape(text)
}

// unslashed replaces \ooo, three octal digits, by that byte, and \c by c.
func unslashed(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			b = append(b, text[i])
			continue
		}
		i++
		if i+2 < len(text) && text[i]|3 == '3' && text[i+1]|7 == '7' && text[i+2]|7 == '7' {
			b = append(b, (text[i]-'0')<<6|(text[i+1]-'0')<<3|(text[i+2]-'0'))
			i += 2
		} else {
			b = append(b, text[i])
		}
	}
	return string(b)
}
