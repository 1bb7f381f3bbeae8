package target

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNormalize holds what Envoy 1.40 answers to the same targets.
func TestNormalize(t *testing.T) {
	for target, want := range map[string]string{
		"/": "/", "/a/b/../c": "/a/c", "/a/./b": "/a/b", "/a//b///c": "/a/b/c", "//a": "/a",
		"/a/%2e%2e/b": "/b", "/a/%2E/b": "/a/b", "/a/.%2e/b": "/b", "/..": "/", "/../../x": "/x",
		"/a/..": "/", "/a/b/..": "/a/", "/a/b/.": "/a/b/", "/a/%2e": "/a/", "/a/...": "/a/...", "/a/.b": "/a/.b",
		`/a\b`: "/a/b", `/a\..\b`: "/b", "/a//": "/a/", "/a//../b": "/a/b", "/a/b//../c": "/a/b/c",
		"/%41%7e%2d": "/A~-", "/%61b": "/ab", "/%c3%A9": "/%c3%A9", "/%25%2e": "/%25.", "/a%3Fb": "/a%3Fb",
		"/a%20b": "/a%20b", "/a%09b": "/a%09b",
		"/a|b": "/a%7Cb", `/a"b<>`: "/a%22b%3C%3E", "/a{b}^`": "/a%7Bb%7D%5E%60",
		"/a;b=c,d": "/a;b=c,d", "/a:b@c&d=e+f$g!h'(i)*": "/a:b@c&d=e+f$g!h'(i)*",
		`/a?b=../x//y%2f\`: `/a?b=../x//y%2f\`, "/a?": "/a?",
		"//": "/", "///": "/", "/x/..;/y": "/y", "/x/.;a=b/y": "/x/y", `/x/..;\y`: "/", "/x/%2e%2e;/y": "/x/..;/y", "/..;": "/",
	} {
		got, redirect, err := Normalize(target)
		require.NoError(t, err, target)
		require.Equal(t, want, got, target)
		require.False(t, redirect, target)
	}
	for target, want := range map[string]string{
		"/a%2fb": "/a/b", "/a%2Fb": "/a/b", "/a%5cb": "/a/b", "/a%2f..%2fb": "/b", "/a%2f/b": "/a/b", "/a/..%2fb?q=%2f": "/b?q=%2f",
	} {
		got, redirect, err := Normalize(target)
		require.NoError(t, err, target)
		require.Equal(t, want, got, target)
		require.True(t, redirect, target)
	}
	for _, target := range []string{"*", "", "a", "/a#b", "/a?b#c", "/a%00b", "/\xc3\xa9", "/a\x7f", "/a b", "/a%zz", "/a%", "/%%300"} {
		_, _, err := Normalize(target)
		require.Equal(t, errPath, err, target)
	}
}

// FuzzNormalize: a normal spelling is its own, but where an escaped dot segment
// with parameters becomes a plain one.
func FuzzNormalize(f *testing.F) {
	f.Add("/a/%2e%2e//b?c")
	f.Add(`/a%2f..\%5cb`)
	f.Fuzz(func(t *testing.T, target string) {
		once, _, err := Normalize(target)
		if err != nil || dotParameters.MatchString(once) {
			return
		}
		twice, redirect, err := Normalize(once)
		require.NoError(t, err)
		require.False(t, redirect)
		require.Equal(t, once, twice)
	})
}
