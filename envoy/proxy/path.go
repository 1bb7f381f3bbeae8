package proxy

import (
	"regexp"
	"strconv"
	"strings"
)

// absolute is a request target with scheme and authority, as far as Envoy takes
// it.
var absolute = regexp.MustCompile(`^(?i:http(s?))://(?:[A-Za-z0-9_.!~*'()%;:&=+$,-]*@)?(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?([/?].*)?$`)

// origin takes scheme and authority off a request target.
func origin(target string) (string, *refusal) {
	if strings.HasPrefix(target, "/") {
		return target, nil
	}
	if target == "*" {
		return "", errNoPath
	}
	if !strings.Contains(target, "://") {
		return "", errPath
	}
	parts := absolute.FindStringSubmatch(target)
	if parts == nil {
		return "", errAuthority
	}
	tls, port, rest := parts[1], parts[2], parts[3]
	if _, err := strconv.ParseUint(port, 10, 16); port != "" && err != nil {
		return "", errAuthority
	}
	switch {
	case tls != "":
		return "", errScheme
	case rest == "":
		return "/", nil
	case rest[0] == '?':
		return "", errNoPath
	}
	return rest, nil
}

// normalize gives a request target the one spelling that rules are written
// for, as Envoy 1.40 does with normalize_path, merge_slashes and
// UNESCAPE_AND_REDIRECT: dot segments are resolved, also those with parameters,
// backslashes are slashes, repeated slashes are merged, letters that need no
// escape lose it and characters that need one get it. A target with an escaped
// slash is to be redirected to what is returned. The query stays as it was sent.
//
// It is stricter than Envoy in one thing, as net/http is: a broken escape is
// malformed.
func normalize(target string) (normal string, redirect bool, why *refusal) {
	path, query, hasQuery := strings.Cut(target, "?")
	if !strings.HasPrefix(path, "/") || strings.ContainsFunc(target, neverInTarget) {
		return "", false, errPath
	}
	path, redirect = unescapeSlashes(path)
	if path, why = respell(dotParameters.ReplaceAllString(path, "$1")); why != nil {
		return "", false, why
	}
	path = mergeSlashes(resolveDots(path))
	if hasQuery {
		path += "?" + query
	}
	return path, redirect, nil
}

func neverInTarget(r rune) bool { return r <= ' ' || r >= 0x7F || r == '#' }

// dotParameters are the parameters of a dot segment, which Envoy drops before
// it looks at escapes and backslashes (CVE-2026-73551).
var dotParameters = regexp.MustCompile(`(/\.\.?);[^/]*`)

func unescapeSlashes(path string) (string, bool) {
	plain := strings.NewReplacer("%2F", "/", "%2f", "/", "%5C", `\`, "%5c", `\`).Replace(path)
	return plain, plain != path
}

// respell goes through the characters of a path.
func respell(path string) (string, *refusal) {
	var out strings.Builder
	out.Grow(len(path))
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c == '\\':
			out.WriteByte('/')
		case c == '%':
			escaped, ok := unhex(path[i+1:])
			switch {
			case !ok || escaped == 0:
				return "", errPath
			case unreserved(escaped):
				out.WriteByte(escaped)
				i += 2
			default:
				out.WriteByte(c)
			}
		case strings.IndexByte("\"<>^`{|}", c) >= 0:
			const digits = "0123456789ABCDEF"
			out.Write([]byte{'%', digits[c>>4], digits[c&15]})
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), nil
}

func unhex(s string) (byte, bool) {
	if len(s) < 2 {
		return 0, false
	}
	high, low := strings.IndexByte(hexDigits, s[0]|0x20), strings.IndexByte(hexDigits, s[1]|0x20)
	return byte(high<<4 | low), high >= 0 && low >= 0
}

const hexDigits = "0123456789abcdef"

func unreserved(c byte) bool {
	letter := c | 0x20
	return letter >= 'a' && letter <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// resolveDots removes "." and "..". An empty segment is one like any other:
// "/a//../b" is "/a/b".
func resolveDots(path string) string {
	if !strings.Contains(path, "/.") {
		return path
	}
	segments := strings.Split(path[1:], "/")
	kept := segments[:0]
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".", "..":
			if s == ".." && len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
			if last {
				kept = append(kept, "")
			}
		default:
			kept = append(kept, s)
		}
	}
	return "/" + strings.Join(kept, "/")
}

// mergeSlashes leaves nothing but slashes two of them, as Envoy does.
func mergeSlashes(path string) string {
	if len(path) > 1 && strings.Trim(path, "/") == "" {
		return "//"
	}
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}
