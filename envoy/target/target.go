// Package target spells the targets of requests as a rendered Envoy does before a filter sees
// them. The proxy of sluice run needs that in Envoy's place, and replay for the log of another
// server.
//
// Its invariant: a target that it returns without an error is normal, and spelled as Envoy does.
// It must never import another package of this module.
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
	// dotParameters are the parameters of a dot segment. Envoy drops them before it resolves
	// escapes and backslashes (CVE-2026-73551).
	dotParameters = regexp.MustCompile(`(/\.\.?);[^/]*`)
	escape        = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	unescaped     = regexp.MustCompile(`[A-Za-z0-9._~-]`) // these never stay escaped
	slashes       = regexp.MustCompile(`//+`)

	respelled = strings.NewReplacer(`\`, "/", `"`, "%22", "<", "%3C", ">", "%3E", "^", "%5E",
		"`", "%60", "{", "%7B", "|", "%7C", "}", "%7D")
)

// normalSigns have no other spelling in a path.
const normalSigns = "/ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

// Normalize returns the one spelling of a request target that rules are written for, as Envoy
// 1.40 makes it with normalize_path, merge_slashes and UNESCAPE_AND_REDIRECT. redirect says that
// the target has an escaped slash, and the client is to be redirected to what is returned. The
// query stays as it was sent.
func Normalize(target string) (normal string, redirect bool, err error) {
	path, query, hasQuery := strings.Cut(target, "?")
	if isMalformed(target, path) {
		return "", false, errPath
	}
	if strings.TrimLeft(path, normalSigns) == "" && !strings.Contains(path, "//") && !strings.Contains(path, "/.") {
		return target, false, nil // most targets are normal
	}
	plain := plainSlashes.Replace(path)
	redirect = plain != path
	plain = dotParameters.ReplaceAllString(plain, "$1")
	plain = escape.ReplaceAllStringFunc(plain, func(escaped string) string {
		c, _ := strconv.ParseUint(escaped[1:], 16, 8)
		letter := string([]byte{byte(c)})
		if unescaped.MatchString(letter) {
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

// isMalformed reports whether Envoy refuses a target with this path.
func isMalformed(target, path string) bool {
	isForbidden := func(r rune) bool { return r <= ' ' || r >= 0x7F || r == '#' }
	_, err := url.PathUnescape(path)
	return err != nil || !strings.HasPrefix(path, "/") || strings.Contains(path, "%00") ||
		strings.ContainsFunc(target, isForbidden)
}
