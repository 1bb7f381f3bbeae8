package request

import "strings"

// Cookie returns the value of the first cookie of a name.
func (r *Request) Cookie(number int) (string, bool) {
	c := &r.cookies[number]
	if !r.knows(&c.lazy) {
		value, present := r.findCookie(c.name)
		r.set(&c.lazy, value, present)
	}
	return c.value, c.present
}

// findCookie looks through all cookie headers. The proxy joins them with a
// comma, which a cookie's value may hold too; only a comma costs a second call,
// which says where the first header ends.
func (r *Request) findCookie(name string) (string, bool) {
	all, present := r.JoinedHeader(r.cookieHeader)
	if !present {
		return "", false
	}
	if strings.IndexByte(all, ',') < 0 {
		return cookieIn(all, name, ";")
	}
	first, _ := r.Header(r.cookieHeader)
	if value, found := cookieIn(first, name, ";"); found || len(first) >= len(all) {
		return value, found
	}
	return cookieIn(all[len(first):], name, ";,")
}

// cookieIn returns the value of the first cookie of a name in one header,
// without the quotes around it.
func cookieIn(header, name, separators string) (string, bool) {
	for header != "" {
		pair := header
		if end := strings.IndexAny(header, separators); end >= 0 {
			pair, header = header[:end], header[end+1:]
		} else {
			header = ""
		}
		key, value, isPair := strings.Cut(pair, "=")
		if !isPair || strings.Trim(key, " \t") != name {
			continue
		}
		value = strings.Trim(value, " \t")
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		return value, true
	}
	return "", false
}
