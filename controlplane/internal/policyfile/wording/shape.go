package wording

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// choices are the values of several forms, in words.
var choices = map[string]string{
	"lease":            "auto, off or a number of units from 1 to " + strconv.Itoa(policy.MaxLease),
	"cost":             "a whole number from 1 to 4294967295, an object such as {header: x-cost} or a list such as [{match: …, cost: 10}]",
	"one_cost":         "a whole number from 1 to 4294967295 or an object such as {header: x-cost}",
	"percent":          `a percentage from 1 to 100 such as 25 or "25%"`,
	"path":             `"full" or an object such as {segment: 1}`,
	"claim":            "a claim's name such as sub, or a list of names for one inside another",
	"response_headers": "an object from header names to texts",
	"grpc_status":      "a gRPC status such as resource_exhausted, or its number from 1 to 16",
}

// Shape says what a value of the shape is, after "must be".
func Shape(s policy.Shape) string {
	switch s.Form {
	case policy.FormText, policy.FormName:
		return "text"
	case policy.FormWord:
		if len(s.Words) == 1 {
			return quote(s.Words[0])
		}
		return "one of " + strings.Join(s.Words, ", ")
	case policy.FormInteger:
		if s.Min == s.Max {
			return strconv.FormatInt(s.Min, 10)
		}
		return "a whole number from " + strconv.FormatInt(s.Min, 10) + " to " + strconv.FormatInt(s.Max, 10)
	case policy.FormBool:
		return "true or false"
	case policy.FormDuration:
		return `a duration such as "10s", "1h30m" or "7d"`
	case policy.FormPeriod:
		return `a period such as "minute", "15 minutes" or "1h30m"`
	case policy.FormList:
		return "a list"
	case policy.FormObject:
		return "an object"
	case policy.FormPatterns:
		return "an object from header names to patterns"
	default:
		return choices[s.Of]
	}
}

// wrongValue says that a value is not of its shape.
func wrongValue(p *policy.Problem) string {
	n, want := p.Node, p.Want
	switch isObject := want.Form == policy.FormObject; {
	case isObject && want.Of == "policy":
		return "a policy must be an object with the fields version, domain, headers, quota, rules, exempt and manage, not " + describe(n)
	case isObject && want.Of == "limit":
		return "must be a limit, not " + describe(n) + `: write one such as "10/minute" or {requests: 10, per: 1m}`
	case isObject && want.Of == "key":
		return wrongKeyPart(n)
	case n.Kind == policy.Null && want.Required:
		return "is empty: give " + Shape(want)
	case n.Kind == policy.Null && isItem(p.Path):
		return "is empty: give " + Shape(want) + ", or remove the item"
	case n.Kind == policy.Null:
		return "is empty: give " + Shape(want) + ", or remove the field"
	case want.Form == policy.FormPatterns:
		return "must be " + Shape(want) + ", not " + describe(n) + ": " + headersHint
	case n.Kind == policy.Object && inHeaders(p.Path): // as in Envoy's route matches
		return "must be text, not an object: a pattern is " + patternForms
	case want.Of == "segment" && n.Kind == policy.String:
		path := strings.Split(n.Text, ".")
		for i := range path {
			path[i] = quote(path[i])
		}
		return "must be a list of the path's segments: write [" + strings.Join(path, ", ") + "]"
	}
	return "must be " + Shape(want) + ", not " + describe(n) + advice(want, n)
}

const (
	patternForms = `text such as gold, "gold-*", "*-gold", "~[a-z]+", "*" for present or "!" for absent`
	headersHint  = "write one such as headers: {x-tier: gold}"
)

// inHeaders reports whether the path is of a header's pattern.
func inHeaders(path string) bool {
	return (strings.Contains(path, ".headers.") || strings.Contains(path, ".headers[")) && !strings.Contains(path, ".response.")
}

// isItem reports whether the path ends with an index.
func isItem(path string) bool { return strings.HasSuffix(path, "]") && !strings.HasSuffix(path, `"]`) }

const keyHint = "write one such as {header: x-user-id}, client_ip, host, method, path or route"

// bareHints are the kinds of key parts that need more than their word.
var bareHints = map[string]string{
	"header": "{header: x-user-id}", "query": "{query: user}", "cookie": "{cookie: session}",
	"jwt": "{jwt: {provider: p, claim: sub}}", "property": `{property: ["connection", "mtls"]}`,
	"first_of": "{first_of: [{header: x-api-key}, client_ip]}",
}

func wrongKeyPart(n *policy.Node) string {
	if n.Kind == policy.Object {
		return "is empty: " + keyHint
	}
	if hint := bareHints[n.Text]; n.Kind == policy.String && hint != "" {
		return "needs more than the word " + quote(n.Text) + ": write " + hint
	}
	message := "must be a part of a key, not " + describe(n)
	if n.Kind == policy.String {
		if near := likely(n.Text, fieldsOf("key")); near != "" {
			return message + ": did you mean " + quote(near) + "?"
		}
	}
	return message + ": " + keyHint
}

// describe says what a value is, after "not".
func describe(n *policy.Node) string {
	switch n.Kind {
	case policy.Bool:
		return n.Text
	case policy.Number:
		return policy.Clip(n.Text)
	case policy.String:
		return quote(n.Text)
	case policy.List:
		return "a list"
	case policy.Object:
		return "an object"
	default:
		return "nothing"
	}
}

// advice says what to do with a value that is not of the shape, behind a colon;
// "" where there is nothing to say.
//
//nolint:gocyclo // one short case for each form
func advice(s policy.Shape, n *policy.Node) string {
	isText := n.Kind == policy.String
	if isText && readsUnquoted(s, n.Text) {
		return ": remove the quotes"
	}
	near := ""
	switch s.Form {
	case policy.FormText, policy.FormName:
		if n.Kind == policy.Number || n.Kind == policy.Bool {
			return ": put it in quotes"
		}
	case policy.FormWord:
		if isText && len(s.Words) > 1 {
			near = likely(n.Text, s.Words)
		}
	case policy.FormInteger:
		if text, percent := strings.CutSuffix(n.Text, "%"); percent && readsUnquoted(s, text) {
			return ": write " + text
		}
	case policy.FormBool:
		switch strings.ToLower(n.Text) {
		case "yes", "y", "on":
			return ": write true"
		case "no", "n", "off":
			return ": write false"
		}
	case policy.FormDuration, policy.FormPeriod:
		if n.Kind == policy.Number {
			near = durationMeant(n.Text)
		}
	case policy.FormList:
		return adviceOnList(s, n)
	case policy.FormChoice:
		switch {
		case isText && s.Of == "grpc_status":
			near = nearest(n.Text, policy.GRPCStatuses[1:])
		case isText && s.Of == "lease":
			near = likely(n.Text, []string{"auto", "off"})
		}
	default: // objects
	}
	if near != "" {
		return ": did you mean " + quote(near) + "?"
	}
	return ""
}

func adviceOnList(s policy.Shape, n *policy.Node) string {
	switch {
	case n.Kind == policy.Object:
		return `: make it an item, with "- " before it`
	case s.Of == "key" && strings.Contains(n.Text, "-"): // a header, by its looks
		return ": write one such as [{header: " + n.Text + "}]"
	case n.Kind == policy.Number, n.Kind == policy.Bool, n.Kind == policy.String:
		return ": put it in brackets, [" + describe(n) + "]"
	}
	return ""
}

// readsUnquoted reports whether text would be of the shape without its quotes.
func readsUnquoted(s policy.Shape, text string) bool {
	if s.Form == policy.FormBool {
		return text == "true" || text == "false"
	}
	_, ok := (&policy.Node{Kind: policy.Number, Text: text}).Integer()
	return ok && (s.Form == policy.FormInteger || s.Form == policy.FormChoice && slices.Contains([]string{"cost", "one_cost", "lease"}, s.Of))
}
