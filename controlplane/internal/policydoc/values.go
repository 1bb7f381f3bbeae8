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
	periodWords     = `[0-9]*\s*(?:[Ss][Ee][Cc][Oo][Nn][Dd]|[Mm][Ii][Nn][Uu][Tt][Ee]|[Hh][Oo][Uu][Rr]|[Dd][Aa][Yy]|[Ww][Ee][Ee][Kk]|[Mm][Oo][Nn][Tt][Hh]|[Yy][Ee][Aa][Rr])[Ss]?`
	periodPattern   = `^\s*(?:` + periodWords + `|` + durationTerms + `)\s*$`
	limitPattern    = `^\s*[0-9]+\s*(?:/|[Pp][Ee][Rr])\s*(?:` + periodWords + `|` + durationTerms + `)\s*$`
	tokenPattern    = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" //nolint:gosec // a token of HTTP's grammar

	hostPattern        = `^(?:(?:\*\.)?[0-9A-Za-z_-][0-9A-Za-z_.-]*|\[[0-9A-Fa-f:.]+\])$`
	pathPattern        = `^(?:~.+|=\*|=/[^?]*|/[^?*]*\*?|\*)$`
	headerValuePattern = `^(?:\*|!|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
	keyPatternPattern  = `^(?:\*|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
)

// textPatterns are patterns of texts, by "OBJECT.FIELD"; other texts may be
// anything.
var textPatterns = map[string]string{
	"policy.name":         `^[0-9A-Za-z_-]{1,63}$`,
	"response.body":       `^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$`,
	"manage.path":         `^/(?:[^/?#%\\ ]+/)+$`,
	"manage.token_sha256": `^[0-9A-Fa-f]{64}$`,
	"header.name":         tokenPattern,
	"header.scheme":       tokenPattern,
	"address.header":      tokenPattern,
	"cost.header":         tokenPattern,
	"requests.header":     tokenPattern,
	"settle_to.header":    tokenPattern,
	"settle_to.trailer":   tokenPattern,
}

// itemCounts are the fewest and the most items of lists, by "OBJECT.FIELD"; a
// most of 0 is any number.
var itemCounts = map[string][2]int64{
	"policy.rules":       {0, policy.MaxRules},
	"policy.exempt":      {0, policy.MaxExempt},
	"rule.key":           {0, policy.MaxKeyParts},
	"rule.limits":        {0, policy.MaxWindows},
	"rule.overrides":     {0, policy.MaxOverrides},
	"match.hosts":        {1, 0},
	"match.client_ips":   {1, 0},
	"rule.exempt":        {0, policy.MaxExempt},
	"key.first_of":       {2, policy.MaxKeyParts},
	"key.property":       {1, 0},
	"requests.property":  {1, 0},
	"match.methods":      {1, 0},
	"match.paths":        {1, 0},
	"override.key":       {1, policy.MaxKeyParts},
	"override.limits":    {1, policy.MaxWindows},
	"answer.status":      {1, 0},
	"answer.grpc_status": {1, 0},
}

var anyText = text("text", textPattern)

// items are the items of lists that are no plain objects.
var items = map[string]*node{
	"host":    text("host", hostPattern),
	"method":  text("method", tokenPattern),
	"path":    text("path pattern", pathPattern),
	"network": text("address or network", `^[0-9A-Fa-f:.]+(?:/[0-9]+)?$`),
	"segment": anyText,
	"pattern": text("pattern", keyPatternPattern),
	"limit": {says: "[limit](#limit), \"10/minute\", [slots](#slots) or a number of them", AnyOf: []*node{ // a window, or slots of concurrency
		text(`text such as "10/minute"`, limitPattern), object("limit"), text(`text such as "10"`, `^\s*[0-9]+\s*$`), integer(0, math.MaxUint32), object("slots"),
	}},
	"key":                {says: "[key](#key)", AnyOf: []*node{word(policy.BareKeys()...), object("key")}},
	"status":             {AnyOf: []*node{integer(100, 599), text(`text such as "4xx" or "400-499"`, `^[1-5](?:xx|[0-9][0-9](?:-[1-5][0-9][0-9])?)$`)}},
	"answer_grpc_status": {says: "gRPC statuses such as `unavailable` or 14", AnyOf: []*node{word(policy.GRPCStatuses...), integer(0, 16)}},
}

// choices are the forms of values that have several.
var choices = map[string][]*node{
	"missing_key":      {word("skip", "deny", "share"), object("missing_key")},
	"lease":            {word("auto", "off"), integer(1, policy.MaxLease)},
	"cost":             {integer(1, math.MaxUint32), object("cost"), list(object("matched_cost"), 1, policy.MaxCosts)},
	"requests":         {integer(0, math.MaxUint32), object("requests")},
	"one_cost":         {integer(1, math.MaxUint32), object("cost")},
	"header":           {text("text", tokenPattern), object("header")},
	"path":             {word("full"), object("path")},
	"response_headers": {headers(anyText, 0, "such as {x-left: few}")},
	"grpc_status":      {{Enum: policy.GRPCStatuses[1:], says: "gRPC status such as `unavailable`"}, integer(1, 16)},
	"claim":            {anyText, list(anyText, 1, 0)},
	"utc_offset":       {text(`text such as "+02:00"`, `^(?:[+-](?:0[0-9]|1[01]):[0-5][0-9]|[+-]12:00|\+1[23]:[0-5][0-9]|\+14:00)$`)},
	"settle_to": {word(string(policy.SettleCost), string(policy.SettleTokens), string(policy.SettleInputTokens), string(policy.SettleOutputTokens),
		string(policy.SettleRequestBytes), string(policy.SettleResponseBytes), string(policy.SettleMilliseconds)), object("settle_to")},
	"unknown": {word(string(policy.UnknownEstimate), string(policy.UnknownCost), string(policy.UnknownNothing)), integer(0, 0)},
	"percent": {integer(1, 100), text(`text such as "25%"`, `^[0-9]+(?:\.[0-9]+)?(?:[Ee][+-]?[0-9]+)?%$`)},
}
