package accesslog

import (
	"regexp"
	"slices"
	"strings"
)

// renderedStart begins the access log that sluice render has Envoy write. The client's
// address and headers follow as name=value, where the policy has them.
const renderedStart = `%START_TIME% %REQ(:METHOD)% %PATH(NQ)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% ` +
	`%FILTER_STATE(wasm.sluice.verdict:PLAIN)%`

var renderedLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT[^ ]+Z [^ ]+ [^ ]+ \d{1,3} [^ ]+ [^ ]+(?: (.*))?$`)

// renderedFormat returns the format of such lines, "" where there is none. A client can
// write name=value into a header, but not into every line: a name is one that all have.
func renderedFormat(lines []sampled) string {
	var names []string
	known := false
	for _, line := range lines {
		m := renderedLine.FindSubmatch(line.text)
		if m == nil || line.err != nil {
			continue
		}
		inLine := namesIn(string(m[1]))
		if !known {
			names, known = inLine, true
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(inLine, name) })
	}
	if !known {
		return ""
	}
	format := renderedStart
	for _, name := range names {
		operator := "%REQ(" + name + ")%"
		if name == FieldClientIP {
			operator = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
		}
		format += " " + name + "=" + operator
	}
	return format
}

func namesIn(text string) (names []string) {
	for word := range strings.SplitSeq(text, " ") {
		if name, _, ok := strings.Cut(word, "="); ok && isToken(name) && !strings.Contains(name, "%") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
