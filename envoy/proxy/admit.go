package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// admit refuses what the Envoy of a rendered bootstrap would not show to a filter,
// and returns the path of all else.
func admit(r *http.Request) (path string, redirect bool, err error) {
	for name := range r.Header {
		if strings.Contains(name, "_") { // some servers read it as a hyphen: a second spelling of a key
			return "", false, errors.New("a header's name has an underscore")
		}
	}
	switch {
	case r.Method == http.MethodConnect || r.Method != strings.ToUpper(r.Method): // get is no way around a rule for GET
		return "", false, errors.New("unknown method")
	case r.Host == "" || !httpguts.ValidHostHeader(r.Host):
		return "", false, errors.New("no host, or a malformed one")
	}
	return normalize(strings.TrimPrefix(r.RequestURI, "http://"+r.Host)) // which a client of a forward proxy sends
}

var (
	errPath = errors.New("malformed request path")

	plainSlashes = strings.NewReplacer("%2F", "/", "%2f", "/", "%5C", `\`, "%5c", `\`)
	// dotParameters are the parameters of a dot segment, which Envoy drops before
	// it looks at escapes and backslashes (CVE-2026-73551).
	dotParameters = regexp.MustCompile(`(/\.\.?);[^/]*`)
	escape        = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	needless      = regexp.MustCompile(`[A-Za-z0-9._~-]`) // of an escape
	respelled     = strings.NewReplacer(`\`, "/", `"`, "%22", "<", "%3C", ">", "%3E", "^", "%5E", "`", "%60", "{", "%7B", "|", "%7C", "}", "%7D")
	slashes       = regexp.MustCompile(`//+`)
)

// normalize gives a request target the one spelling that rules are written
// for, as Envoy 1.40 does with normalize_path, merge_slashes and
// UNESCAPE_AND_REDIRECT. A target with an escaped slash is to be redirected to what
// is returned. The query stays as it was sent.
func normalize(target string) (normal string, redirect bool, err error) {
	path, query, hasQuery := strings.Cut(target, "?")
	never := func(r rune) bool { return r <= ' ' || r >= 0x7F || r == '#' }
	_, err = url.PathUnescape(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.Contains(path, "%00") || strings.ContainsFunc(target, never) {
		return "", false, errPath
	}
	plain := plainSlashes.Replace(path)
	redirect = plain != path
	plain = dotParameters.ReplaceAllString(plain, "$1")
	plain = escape.ReplaceAllStringFunc(plain, func(escaped string) string {
		c, _ := strconv.ParseUint(escaped[1:], 16, 8)
		if letter := string([]byte{byte(c)}); needless.MatchString(letter) {
			return letter
		}
		return escaped
	})
	read, err := url.ParseRequestURI(respelled.Replace(plain))
	if err != nil {
		return "", false, errPath
	}
	resolved := new(url.URL).ResolveReference(read) // of dot segments
	path = slashes.ReplaceAllString(resolved.EscapedPath(), "/")
	if hasQuery {
		path += "?" + query
	}
	return path, redirect, nil
}
