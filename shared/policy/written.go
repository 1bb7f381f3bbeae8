package policy

import "math"

// What the tables leave to a reader's code is told here, so that a schema and a
// reference can tell it too: in which forms a choice or a list's item may be
// written, what a text looks like, how many items a list has. A schema must
// accept all that the reader accepts, so patterns say no more than they can.

const (
	durationPattern = `^(?:0|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h|d|w))+)$`
	limitPattern    = `^\s*[0-9]+\s*(?:/|[Pp][Ee][Rr])\s*(?:[0-9]*\s*(?:[Ss][Ee][Cc][Oo][Nn][Dd]|[Mm][Ii][Nn][Uu][Tt][Ee]|[Hh][Oo][Uu][Rr]|[Dd][Aa][Yy]|[Ww][Ee][Ee][Kk]|[Mm][Oo][Nn][Tt][Hh]|[Yy][Ee][Aa][Rr])[Ss]?|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h|d|w))+)\s*$`
	tokenPattern    = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" //nolint:gosec // a token of HTTP's grammar

	hostPattern        = `^(?:(?:\*\.)?[0-9A-Za-z_-][0-9A-Za-z_.-]*|\[[0-9A-Fa-f:.]+\])$`
	pathPattern        = `^(?:~.+|=\*|=/[^?]*|/[^?*]*\*?|\*)$`
	headerValuePattern = `^(?:\*|!|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
	keyPatternPattern  = `^(?:\*|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
)

// writtenText are patterns of texts, by "OBJECT.FIELD"; others may be anything.
func writtenText() map[string]string {
	return map[string]string{
		"response.body":       `^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$`,
		"manage.path":         `^/(?:[^/?#%\\ ]+/)+$`,
		"manage.token_sha256": `^[0-9A-Fa-f]{64}$`,
		"key.header":          tokenPattern,
		"cost.header":         tokenPattern,
	}
}

// writtenItems are the least and the most items of lists, by "OBJECT.FIELD".
func writtenItems() map[string][2]int64 {
	return map[string][2]int64{
		"policy.rules":     {0, MaxRules},
		"rule.key":         {0, MaxKeyParts},
		"rule.limits":      {0, MaxWindows},
		"rule.overrides":   {0, MaxOverrides},
		"match.hosts":      {1, 0},
		"match.client_ips": {1, 0},
		"rule.exempt":      {0, MaxExempt},
		"key.first_of":     {2, MaxKeyParts},
		"key.property":     {1, 0},
		"match.methods":    {1, 0},
		"match.paths":      {1, 0},
		"override.key":     {1, MaxKeyParts},
		"override.limits":  {1, MaxWindows},
	}
}

// writtenItem is what items of a list look like that are no plain objects, by
// the name that listOf gives them.
func writtenItem(of string) (TypeDoc, bool) {
	text := func(pattern, words string) (TypeDoc, bool) {
		return TypeDoc{Kind: TypeText, Pattern: pattern, Text: words}, true
	}
	switch of {
	case "host":
		return text(hostPattern, "host")
	case "method":
		return text(tokenPattern, "method")
	case "path":
		return text(pathPattern, "path pattern")
	case "network":
		return text(`^[0-9A-Fa-f:.]+(?:/[0-9]+)?$`, "address or network")
	case "segment":
		return text("", "text")
	case "pattern":
		return text(keyPatternPattern, "pattern")
	case "limit":
		return TypeDoc{Kind: TypeChoice, Forms: []TypeDoc{
			{Kind: TypeText, Pattern: limitPattern, Text: `text such as "10/minute"`}, {Kind: TypeObject, Object: "limit"},
		}}, true
	case "key":
		return TypeDoc{Kind: TypeChoice, Forms: []TypeDoc{
			{Kind: TypeWord, Words: bareKeyParts()}, {Kind: TypeObject, Object: "key"},
		}}, true
	}
	return TypeDoc{}, false
}

// writtenChoice are the forms of a choice, by the name that choice gives it.
func writtenChoice(of string) ([]TypeDoc, bool) {
	switch of {
	case "cost":
		return []TypeDoc{{Kind: TypeInteger, Min: 1, Max: math.MaxUint32}, {Kind: TypeObject, Object: "cost"}}, true
	case "path":
		return []TypeDoc{{Kind: TypeWord, Words: []string{"full"}}, {Kind: TypeObject, Object: "path"}}, true
	case "response_headers":
		return []TypeDoc{{Kind: TypeHeaders, Item: &TypeDoc{Kind: TypeText, Text: "text"}, Text: "object from header names to texts"}}, true
	case "grpc_status":
		return []TypeDoc{{Kind: TypeWord, Words: grpcStatuses[1:]}, {Kind: TypeInteger, Min: 1, Max: 16}}, true
	case "claim":
		return []TypeDoc{{Kind: TypeText, Text: "text"}, {Kind: TypeList, Item: &TypeDoc{Kind: TypeText, Text: "text"}, Min: 1}}, true
	case "percent":
		return []TypeDoc{{Kind: TypeInteger, Min: 1, Max: 100}, {Kind: TypeText, Pattern: `^[0-9]+(?:\.[0-9]+)?(?:[Ee][+-]?[0-9]+)?%$`, Text: `text such as "25%"`}}, true
	}
	return nil, false
}

// bareKeyParts are the parts of a key that may stand as a word alone: those that
// are read so.
func bareKeyParts() (words []string) {
	for i := range keyFields {
		r := &reader{}
		readBareKeyPart(r, value{node: &Node{Kind: String, Text: keyFields[i].name}, shape: objectOf("key")}, &KeyPart{})
		if len(r.errs) == 0 {
			words = append(words, keyFields[i].name)
		}
	}
	return words
}
