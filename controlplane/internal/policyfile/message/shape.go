package message

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

var bareKeys = policy.BareKeys()

// words are the values of a format's forms in words, by the name of the object or of the choice.
type words struct{ objects, lists, choices map[string]string }

var policies = words{
	objects: map[string]string{
		"proxies":  `an object such as {node: "edge-*"}`,
		"policy":   "a policy, an object with the fields version and rules",
		"response": "an object such as {status: 503}",
		"limit":    `a limit such as "10/minute" or {requests: 10, per: 1m}`,
		"key": "a part of a key such as {header: x-user-id}, {query: user}, " +
			strings.Join(bareKeys[:len(bareKeys)-1], ", ") + " or " + bareKeys[len(bareKeys)-1],
		"usage":  "an object such as {path: /.well-known/ratelimit}",
		"block":  "an object such as {for: 1h, prolong: true}",
		"settle": "an object such as {when: {status: [401]}}",
		"price":  `an object such as {model: "*", input: 250000, output: 1000000}`,
		"answer": "an object such as {status: [401]}",
	},
	lists: map[string]string{
		"limit":   `a list such as ["10/minute", "5/1s"]`,
		"key":     "a list such as [{header: x-user-id}, client_ip]",
		"price":   `a list such as [{model: "*", input: 250000, output: 1000000}]`,
		"status":  `a list such as [401, "5xx"]`,
		"segment": "a list of the path's segments such as [connection, mtls]",
	},
	choices: map[string]string{
		"missing_key": "skip, deny, share or an object such as {deny: {status: 401}}",
		"block":       `a duration such as "1h", or an object such as {for: 1h, prolong: true}`,
		"lease":       "auto, off or a number of units from 1 to " + strconv.Itoa(policy.MaxLease),
		"cost": "a whole number from 1 to 4294967295, an object such as {header: x-cost} or a list such as " +
			"[{match: …, cost: 10}]",
		"requests": "a whole number from 0 to 4294967295 or an object such as {jwt: {provider: corp, claim: " +
			"rpm}, default: 100, max: 10000}",
		"one_cost":           "a whole number from 1 to 4294967295 or an object such as {header: x-cost}",
		"percent":            `a percentage from 1 to 100 such as 25 or "25%"`,
		"path":               `"full" or an object such as {segment: 1}`,
		"header":             "a header's name such as x-user-id, or an object such as {name: authorization, scheme: bearer}",
		"claim":              "a claim's name such as sub, or a list of names for one inside another",
		"utc_offset":         `a UTC offset from -12:00 to +14:00, such as "+02:00"`,
		"response_headers":   "an object from header names to texts",
		"grpc_status":        "a gRPC status such as resource_exhausted, or its number from 1 to 16",
		"settle_to":          "a word such as tokens, or an object such as {header: x-cost}",
		"unknown":            "estimate, cost or 0",
		"answer_grpc_status": "a gRPC status such as unauthenticated, or its number from 0 to 16",
	},
}

// testFiles are of package testfile, whose fields have the shapes of policies, too.
var testFiles = words{
	objects: map[string]string{
		"tests":           "an object with the fields version, policy and tests",
		"test":            "an object such as {name: …, steps: […]}",
		"step":            "an object such as {request: {path: /login}, expect: {allowed: true}}",
		"test_request":    "an object such as {path: /login, client_ip: 192.0.2.7}",
		"test_answer":     "an object such as {status: 401}",
		"counter":         "an object such as {rule: per-user, key: [alice]}",
		"set_counter":     "an object such as {rule: per-user, key: [alice], units: 10}",
		"expect":          "an object such as {allowed: false, status: 429}",
		"expected_rule":   "an object such as {remaining: 3}",
		"expected_window": "an object such as {used: 3}",
	},
	lists: map[string]string{
		"test":      "a list of tests such as [{name: …, steps: […]}]",
		"step":      "a list of steps such as [{request: {path: /login}, expect: {allowed: true}}]",
		"any_text":  "a list of texts such as [alice]",
		"rule_name": "a list of rules such as [per-user]",
	},
	choices: map[string]string{
		"time":             "a time from 1970 to 2200 such as 2026-01-31T12:00:00Z",
		"test_headers":     "an object from header names to values such as {x-user-id: alice}",
		"header_values":    "text, or a list of texts",
		"claims":           "an object from providers to claims such as {corp: {sub: alice}}",
		"metadata":         "an object from namespaces to objects such as {envoy.lb: {canary: true}}",
		"json_object":      "an object such as {sub: alice}",
		"properties":       "an object from paths to texts such as {connection.requested_server_name: a.example}",
		"json":             "a value such as {usage: {prompt_tokens: 10, completion_tokens: 5}}",
		"retry_after":      `a duration such as "1m30s", or never`,
		"expected_rules":   "an object from rules to what is expected of them such as {per-user: {remaining: 3}}",
		"expected_windows": "an object from windows to what is expected of them such as {daily: {used: 3}}",
	},
}

// Shape says what a value of the shape is, after "must be".
func Shape(s policy.Shape) string {
	switch s.Form {
	case policy.FormText, policy.FormName:
		return "text"
	case policy.FormWord:
		return "one of " + strings.Join(s.Words, ", ")
	case policy.FormInteger:
		if s.Min == s.Max {
			return strconv.FormatInt(s.Min, 10)
		}
		return "a whole number from " + strconv.FormatInt(s.Min, 10) + " to " + strconv.FormatInt(s.Max, 10)
	case policy.FormPrice:
		return "a number from " + strconv.FormatInt(s.Min, 10) + " to " + strconv.FormatInt(s.Max, 10) +
			" with at most six decimal places"
	case policy.FormBool:
		return "true or false"
	case policy.FormDuration:
		return `a duration such as "10s", "1h30m" or "7d"`
	case policy.FormPeriod:
		return `a period such as "minute", "15 minutes" or "1h30m"`
	case policy.FormList:
		return cmp.Or(policies.lists[s.Of], testFiles.lists[s.Of], "a list")
	case policy.FormObject:
		return cmp.Or(policies.objects[s.Of], testFiles.objects[s.Of], "an object")
	case policy.FormTexts:
		return "an object from names to texts such as {env: prod}"
	case policy.FormPatterns:
		return "an object from header names to patterns such as {x-tier: gold}"
	default:
		return cmp.Or(policies.choices[s.Of], testFiles.choices[s.Of])
	}
}

// wrongValue says that a value is not of its shape.
func wrongValue(n *policy.Node, want policy.Shape) string {
	isText := n.Kind == policy.String
	switch {
	case n.Kind == policy.Null && want.Required:
		return "is empty: give " + Shape(want)
	case n.Kind == policy.Null:
		return "is empty: give " + Shape(want) + ", or remove it"
	}
	s := "must be " + Shape(want) + ", not " + Describe(n)
	switch want.Form {
	case policy.FormText, policy.FormName:
		if n.Kind == policy.Number || n.Kind == policy.Bool {
			s += ": put it in quotes"
		}
	case policy.FormInteger, policy.FormPrice:
		number := policy.Node{Kind: policy.Number, Text: n.Text}
		if _, ok := number.Integer(); isText && ok {
			s += ": remove the quotes"
		}
	case policy.FormBool:
		if isText && (n.Text == "true" || n.Text == "false") {
			s += ": remove the quotes"
		}
	case policy.FormWord:
		if near := Nearest(n.Text, want.Words); isText && near != "" {
			s += ": did you mean " + quote(near) + "?"
		}
	default: // the shape says all
	}
	return s
}

// Describe is a value as an error shows it.
func Describe(n *policy.Node) string {
	switch n.Kind {
	case policy.Bool, policy.Number:
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
