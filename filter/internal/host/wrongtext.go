package host

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	spaces   = " \t\r\n"
	asStruct = "it came as google.protobuf.Struct: put it as JSON into google.protobuf.StringValue, " +
		"as sluice render filter -f FILE writes it"
	noJSON = "the filter reads JSON, not YAML: sluice render filter -f FILE writes the policy as JSON"
)

// unreadable says why a configuration is no policy, and what to do where people
// commonly write another kind of text.
func unreadable(text string, err error) string {
	// Not errors.As, which links reflection.
	problem, ok := err.(*policy.Problem) //nolint:errorlint // see above
	if !ok || problem.Code != policy.InvalidJSON {
		return err.Error()
	}
	if isStruct(text) {
		return asStruct
	}
	text = strings.TrimLeft(text, spaces)
	if text != "" && text[0] != '{' && text[0] != '[' {
		return err.Error() + ": " + noJSON
	}
	return err.Error()
}

// isStruct reports whether a text looks like the wire format of a Struct, which
// Envoy hands to the filter as it is. It begins with the tag of a map's entry, the
// entry's length and the tag and length of the field's name: no text has such
// characters.
func isStruct(text string) bool {
	const tag, longest = '\n', 8
	for i, c := range []byte(text[:min(len(text), longest)]) {
		switch {
		case i == 0 && c != tag:
			return false
		case c < ' ' && strings.IndexByte(spaces, c) < 0:
			return true
		}
	}
	return false
}
