package nginxconf_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/nginxconf"
)

// shown writes directives in one line, each word in quotation marks.
func shown(list []*nginxconf.Directive) string {
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, "%d:%q", d.Line, append([]string{d.Name}, d.Args...))
		if len(d.Block) > 0 {
			b.WriteString("{" + shown(d.Block) + "}")
		}
	}
	return b.String()
}

func parse(text string, include nginxconf.Include) ([]*nginxconf.Directive, error) {
	return nginxconf.Parse(nginxconf.File{Name: "a.conf", Text: []byte(text)}, include)
}

// Words are split as nginx splits them.
func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"a b;c;":                           `1:["a" "b"]1:["c"]`,
		"a 'b c' \"d;{}\" '';":             `1:["a" "b c" "d;{}" ""]`,
		"# x;\na\n b # y\n ;":              `2:["a" "b"]`,
		"a b#c;":                           `1:["a" "b#c"]`,
		"a ${b}c x${d}e;":                  `1:["a" "${b}c" "x${d}e"]`,
		"a{b}c;}":                          `1:["a"]{1:["b}c"]}`,
		`a \.php$ \;x '\'' "\\\"" \t;`:     `1:["a" "\\.php$" "\\;x" "'" "\\\"" "\t"]`,
		"if ($a = \"b\") { c; }":           `1:["if" "($a" "=" "b"]{1:["c"]}`,
		"map $a $b {\n \"\" x;\r\n ~y z;}": `1:["map" "$a" "$b"]{2:["" "x"]3:["~y" "z"]}`,
		"a_by_lua_block { if x { } } b;":   `1:["a_by_lua_block"]1:["b"]`,
	} {
		list, err := parse(text, nil)
		require.NoError(t, err, text)
		require.Equal(t, want, shown(list), text)
	}
}

func TestErrorsNameFileAndLine(t *testing.T) {
	for text, want := range map[string]string{
		"a;\nb":                      "a.conf:2: the directive b has no ; at its end",
		"a {\nb;\n":                  "a.conf:3: the file ends within a block: a } is missing",
		"a;\n}":                      "a.conf:2: this } ends no block",
		"a;;":                        "a.conf:1: there is no directive before this ;",
		"a 'b\nc;":                   "a.conf:1: a quotation mark ' has no end",
		"a 'b'c;":                    "a.conf:1: there must be a space or a ; behind the quotation mark '",
		"\na_by_lua_block { {":       "a.conf:2: this block of Lua has no } at its end",
		strings.Repeat("a {", 102):   "a.conf:1: blocks may be 100 deep",
		strings.Repeat("#", 5<<20):   "a.conf:1: there are more than 1000 files or 4194304 bytes: give those with limits",
		"a;\ninclude '../b.conf';\n": "a.conf:2: not here",
	} {
		_, err := parse(text, func(string) ([]nginxconf.File, error) { return nil, fmt.Errorf("not here") })
		require.EqualError(t, err, want)
	}
}

// An include is replaced by what its files have. Its files may not include themselves, and their
// number has a bound, also if each includes two others.
func TestIncludes(t *testing.T) {
	files := map[string]string{"b": "b; include c;", "c": "c 1;\nc 2;", "loop": "include loop2;", "loop2": "include loop;"}
	for i := range 20 {
		files[fmt.Sprint("d", i)] = fmt.Sprintf("include d%d; include d%d;", i+1, i+1)
	}
	include := func(pattern string) (found []nginxconf.File, err error) {
		if text, ok := files[pattern]; ok {
			found = append(found, nginxconf.File{Name: pattern, Text: []byte(text)})
		}
		return found, nil
	}
	list, err := parse("a { include b; include absent; }", include)
	require.NoError(t, err)
	require.Equal(t, `1:["a"]{1:["b"]1:["c" "1"]2:["c" "2"]1:["include" "absent"]}`, shown(list))
	require.Equal(t, "c", list[0].Block[1].File)
	_, err = parse("include loop;", include)
	require.EqualError(t, err, "loop2:1: loop includes itself")
	_, err = parse("include d0;", include)
	require.ErrorContains(t, err, "there are more than 1000 files")
}

// Whatever is read, parsing ends with directives or an error.
func FuzzParse(f *testing.F) {
	f.Add("a 'b' { c ${d} \\; # e\n }")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parse(text, nil)
		require.True(t, err == nil || list == nil)
	})
}
