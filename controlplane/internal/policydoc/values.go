package policydoc

import (
	"math"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What the shapes leave to the reader's code is said here, so that the schema
// and the reference can say it too. A schema must accept all that the reader
// accepts, so patterns say no more than they can.
const (
	textPattern = `^[^\x00-\x1f\x7f-\x9f]+$`
	namePattern = `^[^\x00-\x20\x7f-\x9f](?:[^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f])?$`

	durationTerms   = `(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h|d|w))+`
	durationPattern = `^(?:0|` + durationTerms + `)$`
	periodWords     = `[0-9]*\s*(?:[Ss][Ee][Cc][Oo][Nn][Dd]|[Mm][Ii][Nn][Uu][Tt][Ee]|[Hh][Oo][Uu][Rr]` +
		`|[Dd][Aa][Yy]|[Ww][Ee][Ee][Kk]|[Mm][Oo][Nn][Tt][Hh]|[Yy][Ee][Aa][Rr])[Ss]?`
	periodPattern = `^\s*(?:` + periodWords + `|` + durationTerms + `)\s*$`
	limitPattern  = `^\s*[0-9]+\s*(?:/|[Pp][Ee][Rr])\s*(?:` + periodWords + `|` + durationTerms + `)\s*$`
	tokenPattern  = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" //nolint:gosec // a token of HTTP's grammar

	hostPattern        = `^(?:(?:\*\.)?[0-9A-Za-z_-][0-9A-Za-z_.-]*|\[[0-9A-Fa-f:.]+\])$`
	pathPattern        = `^(?:~.+|=\*|=/[^?]*|/[^?*]*\*?|\*)$`
	headerValuePattern = `^(?:\*|!|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
	keyPatternPattern  = `^(?:\*|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
)

// textPatterns are patterns of texts, by what they are of; other texts may be
// anything.
var textPatterns = map[string]string{
	"policy_name": `^[0-9A-Za-z_-]{1,63}$`,
	"body":        `^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$`,
	"usage_path":  `^(?:/[^/?#%\\*;"<>^{|}\x60 ]+)+/?$`,
	"manage_path": `^/(?:[^/?#%\\ ]+/)+$`,
	"sha256":      `^[0-9A-Fa-f]{64}$`,
	"token":       tokenPattern,
	"model":       keyPatternPattern,
	"utc_offset":  `^(?:[+-](?:0[0-9]|1[01]):[0-5][0-9]|[+-]12:00|\+1[23]:[0-5][0-9]|\+14:00)$`,
	"any_text":    "^",
	"percent":     `^[0-9]+(?:\.[0-9]+)?(?:[Ee][+-]?[0-9]+)?%$`,
}

// textNames are what the reference calls some of them.
var textNames = map[string]string{
	"model": "pattern", "utc_offset": `text such as "+02:00"`, "percent": `text such as "25%"`,
}

var anyText = text("text", textPattern)

const statusPattern = `^[1-5](?:xx|[0-9][0-9](?:-[1-5][0-9][0-9])?)$`

var grpcStatuses = []*node{word(policy.GRPCStatuses...), integer(0, 16)}

// items are the items of lists, apart from plain objects.
var items = map[string]*node{
	"host":    text("host", hostPattern),
	"method":  text("method", tokenPattern),
	"path":    text("path pattern", pathPattern),
	"network": text("address or network", `^[0-9A-Fa-f:.]+(?:/[0-9]+)?$`),
	"segment": anyText,
	"pattern": text("pattern", keyPatternPattern),
	// A window, or slots of concurrency.
	"limit": {says: "[limit](#limit), \"10/minute\", [slots](#slots) or a number of them", AnyOf: []*node{
		text(`text such as "10/minute"`, limitPattern), object("limit"),
		text(`text such as "10"`, `^\s*[0-9]+\s*$`), integer(0, math.MaxUint32), object("slots"),
	}},
	"key":                {says: "[key](#key)", AnyOf: []*node{word(policy.BareKeys()...), object("key")}},
	"status":             {AnyOf: []*node{integer(100, 599), text(`text such as "4xx" or "400-499"`, statusPattern)}},
	"answer_grpc_status": {says: "gRPC statuses such as `unavailable` or 14", AnyOf: grpcStatuses},
	"any_text":           {Type: "string", says: "texts"},
}

// choices are the forms of values of which the reference says more than their shapes.
var choices = map[string][]*node{
	"response_headers": {headers(anyText, 0, "such as {x-left: few}")},
	"grpc_status":      {{Enum: policy.GRPCStatuses[1:], says: "gRPC status such as `unavailable`"}, integer(1, 16)},

	// Of tests.
	"time":         {text("time such as 2026-01-31T12:00:00Z", `^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].*$`)},
	"test_headers": {{Type: "object", AdditionalProperties: headerValues, says: "such as {x-user-id: alice}"}},
	"claims":       {{Type: "object", AdditionalProperties: anyObject, says: "such as {corp: {sub: alice}}"}},
	"metadata":     {{Type: "object", AdditionalProperties: anyObject, says: "such as {envoy.lb: {canary: true}}"}},
	"properties": {{
		Type: "object", AdditionalProperties: &node{Type: "string"},
		says: "such as {connection.requested_server_name: a.example}",
	}},
	"json":             {{says: "such as {usage: {prompt_tokens: 10, completion_tokens: 5}}"}},
	"retry_after":      {word("never"), {Type: "string", Pattern: durationPattern, says: "duration"}},
	"expected_rules":   {{Type: "object", AdditionalProperties: object("expected_rule"), says: "rules by name"}},
	"expected_windows": {{Type: "object", AdditionalProperties: object("expected_window"), says: "windows by name"}},
}

var (
	anyObject    = &node{Type: "object"}
	headerValues = &node{AnyOf: []*node{{Type: "string"}, {Type: "array", Items: &node{Type: "string"}}}}
)
