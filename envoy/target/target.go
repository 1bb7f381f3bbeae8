// Package target spells the targets of requests as an Envoy that sluice render set up
// does before a filter sees them: for the proxy that stands in for it, and for whoever
// judges the log of another server.
//
// Its invariant: what is returned without an error is normal, and is Envoy's own
// spelling. It must never import another package of this module.
package target

import (
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

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

// normalSigns have no other spelling in a path.
const normalSigns = "/ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

// Normalize gives a request target the one spelling that rules are written
// for, as Envoy 1.40 does with normalize_path, merge_slashes and
// UNESCAPE_AND_REDIRECT. A target with an escaped slash is to be redirected to what
// is returned. The query stays as it was sent.
func Normalize(target string) (normal string, redirect bool, err error) {
	path, query, hasQuery := strings.Cut(target, "?")
	never := func(r rune) bool { return r <= ' ' || r >= 0x7F || r == '#' }
	_, err = url.PathUnescape(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.Contains(path, "%00") || strings.ContainsFunc(target, never) {
		return "", false, errPath
	}
	if strings.TrimLeft(path, normalSigns) == "" && !strings.Contains(path, "//") && !strings.Contains(path, "/.") {
		return target, false, nil // as most are
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
