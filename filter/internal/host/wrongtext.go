package host

import "github.com/sluice-ratelimit/sluice/shared/policy"

const (
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
	for len(text) > 0 && isSpace(text[0]) {
		text = text[1:]
	}
	if len(text) > 0 && text[0] != '{' && text[0] != '[' {
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
		case c < ' ' && !isSpace(c):
			return true
		}
	}
	return false
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
