package printable

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestTextHasOnlyWhatCanBePrinted(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "all of it: é·✓": "all of it: é·✓", "\x1b[31mred\x9b": "·[31mred\uFFFD", "a\nb\u202ec": "a·b·c",
	} {
		require.Equal(t, want, Text(text))
		require.Equal(t, text == want, Is(text), "%q", text)
	}
	require.False(t, Is("\xff"))
}

func TestCutKeepsWholeCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"":               "",
		"12345678":       "12345678",
		"123456789":      "12345…",
		"1234é678":       "1234…",
		"éééé":           "éééé",
		"ééééé":          "éé…",
		"a\xffb":         "a\uFFFDb",
		"\xff\xff\xff":   "\uFFFD",
		"1234567\xe2":    "12345…",
		"\xe2\xe2\xe2bc": "\uFFFDbc",
	} {
		require.Equal(t, want, Cut(text, 8), "%q", text)
	}
}

func FuzzCut(f *testing.F) {
	f.Add("a\xffé", 5)
	f.Fuzz(func(t *testing.T, text string, bound int) {
		bound = 3 + bound&0xff
		got := Cut(text, bound)
		require.LessOrEqual(t, len(got), bound)
		require.True(t, utf8.ValidString(got))
		if utf8.ValidString(text) && len(text) <= bound {
			require.Equal(t, text, got)
		}
		require.Equal(t, got, Cut(got, bound), "once is enough")
	})
}
