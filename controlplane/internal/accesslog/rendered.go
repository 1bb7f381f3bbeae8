package accesslog

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// renderedStart begins the access log that sluice render has Envoy write. The client's
// address and headers follow as name=value, where the policy has them.
const renderedStart = `%START_TIME% %REQ(:METHOD)% %PATH(NQ)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% ` +
	`%FILTER_STATE(wasm.sluice.verdict:PLAIN)%`

var renderedLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT[^ ]+Z [^ ]+ [^ ]+ \d{1,3} [^ ]+ [^ ]+(?: (.*))?$`)

// rendered is that log. Its values may have spaces, so that a line reads in one way
// alone only where it has the names of the format and no others.
type rendered struct {
	*text
	names []string
}

// renderedNames returns the names that most of such lines have, in their order. A client
// can write name=value into a header, and a log may be older than the names of today. ok
// is false where there is no such line.
func renderedNames(lines []sampled) (names []string, ok bool) {
	most, times := 0, map[string]int{}
	for _, line := range lines {
		m := renderedLine.FindSubmatch(line.text)
		if m == nil || line.err != nil {
			continue
		}
		inLine := namesIn(m[1])
		list := strings.Join(inLine, " ")
		if times[list]++; times[list] > most {
			most, names = times[list], inLine
		}
	}
	return names, most > 0
}

func compileRendered(names []string, renamed map[string]string) (*rendered, error) {
	format := renderedStart
	for _, name := range names {
		operator := "%REQ(" + name + ")%"
		if name == FieldClientIP {
			operator = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
		}
		format += " " + name + "=" + operator
	}
	t, err := compileText(format, renamed)
	return &rendered{t, names}, err
}

func (r *rendered) read(line []byte, f *found, wanted map[string]bool) error {
	if err := r.text.read(line, f, wanted); err != nil {
		return err
	}
	rest := line
	for range strings.Count(renderedStart, " ") + 1 {
		_, rest, _ = bytes.Cut(rest, []byte(" "))
	}
	if !slices.Equal(namesIn(rest), r.names) {
		return errAmbiguous
	}
	return nil
}

// namesIn lists the words that look like name=value. Behind a semicolon or a comma such a
// word is a parameter of the value before it, as in forwarded: proto=https; for=192.0.2.7.
func namesIn(text []byte) (names []string) {
	within := false
	for word := range bytes.SplitSeq(text, []byte(" ")) {
		name, _, ok := bytes.Cut(word, []byte("="))
		if ok && !within && isToken(string(name)) && bytes.IndexByte(name, '%') < 0 {
			names = append(names, string(name))
		}
		within = bytes.HasSuffix(word, []byte(";")) || bytes.HasSuffix(word, []byte(","))
	}
	return names
}
