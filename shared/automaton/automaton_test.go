package automaton

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// expressions use every feature of the syntax.
var expressions = []string{
	"", "a", "abc", "a|b|", "(a|b)*c?.*", "[a-c]+[^b]", ".", ".*", "(?s).*", "(?s).", "^a$", "^^a$$", "(^a|b$)*",
	"a^b", "a$b",
	"(?m)^a$", "(?m)(^a$\n?)*", "(?m)a$.b", "(?ms)^a$.^b$", `(?m)$\n^`, `\bfoo\b`, `.*\bfoo\b.*`, `\Boo\B.*`,
	`(\b|a)*`, `(\B|a)*`, `\b`, `\B`, `\b\B`, `\Aa\z`,
	`(\b.)*`, `.*\b.\B.\b`, `a*\b`, `(?:\b|\B)+x`, `(?:$|x)*`, "(?i)kelvin", "(?i)[k-s]+", "(?i)ſ", "(?i)σςΣ", "(?i)ǆ",
	`(?i)\w+`, `(?i)\W`, `(?i)[^s]`, `(?i)\pL`,
	`\pL+`, `\PL`, `[\pL\pN]{2,3}`, `\p{Greek}*`, `\x{FFFD}`, `[^\x{FFFD}]`, `[^\x00-\x{10FFFF}]`,
	`a[^\x00-\x{10FFFF}]|b`, `[[:^ascii:]]`, `\C`, `é`, `[à-ü]+`, `😀.`,
	"a{0}", "a{3}", "a{2,4}b", "a{2,}", "(a{2}){3}", "(?:a?){5}a{5}", "(a*)*", "(a*)+b", "(?:)*", "(?:){3}", "()|a",
	"(|a)+", "(a|ab)(c|bcd)", "x*?y+?z??",
	"(?U)a*b", "(?P<n>a)b", `\Q.*\E`, `\d+\.\d*`, `(?i).*(bot|crawler|spider|slurp).*`, "/u/[0-9]+", ".*a.{8}",
	"(?:.{0,8}a){0,3}b", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
	"(a|b)*a(a|b){6}", "(?:a|b|ab|ba)*", "((a)|(b)|)*c", "[a-z&&[aeiou]]", "a-b", "[a-]", "(?-s).", "(?i:a)b(?i)c",
}

var texts = []string{
	"", "a", "b", "c", "ab", "ba", "abc", "abcb", "a\n", "\n", "a\nb", "a\na\n", "\na", "foo", " foo ", "xfoo",
	"foo bar", "oo", "goo d", "x", "xy", "yyz",
	"KELVIN", "\u212aelvin", "kelviN", "ſ", "s", "S", "σςΣ", "ΣΣΣ", "ǆ", "ǅ", "é", "É", "àéü", "😀x", "😀\xff", "\xff",
	"\xffa", "\ufffd", "a\xc3", "\xc3\xa9", "\xed\xa0\x80", "\xf4\x90\x80\x80",
	"aa", "aaa", "aaaa", "aab", "aaab", "aaaaaa", "aaaaa", "aaaaaaaaaa", "acb", "abcd", ".*", "3.14",
	"Mozilla (compatible; Googlebot/2.1)", "/u/17", "/u/17/x",
	"01234567-89ab-cdef-0123-456789abcdef", "abababab", "bbbbbbab", "abbabab", "a_", "_", "-", "a-b", "Ab", "AbC",
	"λόγος", "٣", "x1\u0301", "\x00", "a b",
}

// oracle returns a function that matches whole texts by Go's regexp, where . takes all.
func oracle(re string) func(string) bool {
	return regexp.MustCompile("(?s)^(?:" + re + ")$").MatchString
}

func compile(t testing.TB, re string) *Automaton {
	t.Helper()
	var s Set
	a, err := s.Compile(re)
	require.NoError(t, err, "%.80s", re)
	require.Equal(t, a.Bytes(), s.bytes)
	return a
}

func TestMatchIsThatOfGo(t *testing.T) {
	checked := 0
	for _, re := range expressions {
		if _, err := regexp.Compile(re); err != nil {
			continue // \C and the like: see TestErrors
		}
		a, want := compile(t, re), oracle(re)
		for _, text := range texts {
			for _, s := range []string{text, text + text, "a" + text, text + "\n" + text, text + " " + text} {
				require.Equal(t, want(s), a.Match(s), "%q of %q", re, s)
				checked++
			}
		}
	}
	require.Greater(t, checked, 20_000)
}

func FuzzMatch(f *testing.F) {
	for i, re := range expressions {
		f.Add(re, texts[i%len(texts)])
	}
	f.Fuzz(func(t *testing.T, re, text string) {
		var s Set
		a, err := s.Compile(re)
		_, alone := syntax.Parse(re, flags)
		if err != nil {
			if e := (*syntax.Error)(nil); errors.As(err, &e) {
				require.Error(t, alone, "%q: %v", re, err)
			}
			return
		}
		require.NoError(t, alone)
		require.LessOrEqual(t, a.Bytes(), MaxSetBytes)
		if _, err := regexp.Compile("^(?:" + re + ")$"); err != nil {
			return // valid only alone: \Q without \E, or nested to the limit
		}
		require.Equal(t, oracle(re)(text), a.Match(text), "%q of %q", re, text)
		require.Equal(t, oracle(re)(text+text), a.Match(text+text), "%q of %q twice", re, text)
	})
}

func TestMatchAllocatesNothing(t *testing.T) {
	a, text := compile(t, `(?i).*(bot|crawler|\pL{3}).*`), strings.Repeat("Mozilla λόγος \xff", 100)
	require.Zero(t, testing.AllocsPerRun(10, func() { a.Match(text) }))
}

func TestBegins(t *testing.T) {
	for re, want := range map[string]string{
		"/a": "/", "a|/": "a/", "[^/]*": "a", ".*": "a/", "^$": "", "(?:)/": "/", `\b/`: "", `\B/`: "/",
	} {
		for _, c := range "a/" {
			require.Equal(t, strings.ContainsRune(want, c), compile(t, re).Begins(byte(c)), "%q %q", re, c)
		}
	}
}

// An expression is refused at once, and the error says what is wrong and what to do.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ re, want string }{
		{"/(?:" + strings.Repeat("x", 900) + "){1000}",
			"takes 900003 instructions, the most is 1000: write fewer or smaller counted repeats"},
		{"(?:(?:(?:a{10}){10}){10}){2}", "invalid repeat count"},
		{"(?:a{100}b){10}", "takes 1031 instructions"},
		{"(?:(?:a{0,10}b?){0,10}c){0,10}", "takes 2"},
		{".*a.{15}", "needs more than 10922 states: write fewer counted repeats, and none after a .*"},
		{strings.Repeat("a", MaxBytes+1), "has 1025 bytes, the most is 1024"},
		{`(?i)[B-\x{1e942}][B-\x{1e942}][B-\x{1e942}]`, "has too many classes"},
		{strings.Repeat(`\pL|`, 256),
			`has too many classes such as \pL, or ranges in which case does not count: write fewer of them`},
		{"a)(?:b", "unexpected )"},
		{"(", "missing closing )"},
		{`\C`, "invalid escape"},
	} {
		var s Set
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := s.Compile(c.re)
		runtime.ReadMemStats(&after)
		require.ErrorContains(t, err, c.want, "%.60s", c.re)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20), "%.60s", c.re)
		_, again := s.Compile(c.re)
		require.Equal(t, err, again)
	}
}
