package policy

import "strings"

// Response is what a denied client gets.
type Response struct {
	Status      uint16 // 400 to 599
	Body        Template
	ContentType string // empty = text/plain, which the proxy says by itself
	Headers     []ResponseHeader
	GRPCStatus  uint8 // 1 to 16
}

// ResponseHeader is one header of a denial; Name is lower case.
type ResponseHeader struct {
	Name  string
	Value Template
}

// Template is a text with placeholders. None is the empty text.
type Template []TemplatePart

// TemplatePart is literal Text, or a value where Value is one.
type TemplatePart struct {
	Text  string
	Value Placeholder
}

// Placeholder is what the filter writes in the place of %NAME%.
type Placeholder uint8

// What a response may tell of the denial.
const (
	NoValue         Placeholder = iota // literal text
	ValueRule                          // the rule's name
	ValueRetryAfter                    // seconds, as in Retry-After
	ValueLimit                         // the limit of the window with least remaining
	ValueRemaining                     // what that window has left
)

// placeholders by their names, the first of ValueRule.
var placeholders = []string{"RULE", "RETRY_AFTER", "LIMIT", "REMAINING"}

// DefaultResponse is that of a rule without one, and of a denial that no rule
// is the cause of.
func DefaultResponse() Response {
	return Response{
		Status: 429, Body: Template{{Text: "rate limit exceeded\n"}}, GRPCStatus: 8, // RESOURCE_EXHAUSTED
	}
}

// parseTemplate reads the notation of response: %NAME% is a value and %% a
// percent sign. The fault says what is wrong and what would be right.
func parseTemplate(s string) (t Template, fault string) {
	literal := ""
	for {
		before, after, found := strings.Cut(s, "%")
		literal += before
		if !found {
			break
		}
		name, rest, closed := strings.Cut(after, "%")
		if closed && name == "" {
			literal, s = literal+"%", rest
			continue
		}
		at := indexOf(placeholders, name)
		if !closed || at < 0 {
			return nil, unknownPlaceholder(name, closed)
		}
		if literal != "" {
			t, literal = append(t, TemplatePart{Text: literal}), ""
		}
		t, s = append(t, TemplatePart{Value: ValueRule + Placeholder(at)}), rest
	}
	if literal != "" {
		t = append(t, TemplatePart{Text: literal})
	}
	return t, ""
}

func unknownPlaceholder(name string, closed bool) string {
	const literal = "; a percent sign is written %%"
	length := 0
	for length < len(name) && (isLetter(name[length]) || isDigit(name[length]) || name[length] == '_') {
		length++
	}
	word := name[:length]
	if !closed || length < len(name) || length == 0 {
		if indexOf(placeholders, strings.ToUpper(word)) >= 0 {
			return "holds a placeholder without its end: write %" + strings.ToUpper(word) + "%" + literal
		}
		return "holds a % that begins no placeholder: write %% for a percent sign, or one of " + placeholderList()
	}
	lower := make([]string, len(placeholders))
	for i, p := range placeholders {
		lower[i] = strings.ToLower(p)
	}
	message := "holds the unknown placeholder %" + clip(word) + "%: "
	if near := nearest(word, lower); near != "" {
		return message + "did you mean %" + strings.ToUpper(near) + "%?"
	}
	return message + "write one of " + placeholderList() + literal
}

func placeholderList() string { return "%" + strings.Join(placeholders, "%, %") + "%" }
