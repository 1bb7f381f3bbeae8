package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// rateLimit is the rateLimit of a BackendTrafficPolicy of Envoy Gateway. What may be absent is a pointer. Items of
// lists are none, so that one that is null is an empty one.
type rateLimit struct {
	Type   string      `json:"type"`
	Global *limitRules `json:"global"`
	Local  *limitRules `json:"local"`
}

type limitRules struct {
	Rules []limitRule `json:"rules"`
}

type limitRule struct {
	Selectors         []selector      `json:"clientSelectors"`
	Limit             *amount         `json:"limit"`
	Cost              *cost           `json:"cost"`
	Shared            bool            `json:"shared"`
	Shadow            bool            `json:"shadowMode"`
	XRateLimitHeaders json.RawMessage `json:"xRateLimitHeaders"`
}

type cost struct {
	Request  *hits `json:"request"`
	Response *hits `json:"response"`
}

type hits struct {
	From     string          `json:"from"`
	Number   uint32          `json:"number"`
	Metadata json.RawMessage `json:"metadata"`
}

type amount struct {
	Requests uint32          `json:"requests"`
	Unit     string          `json:"unit"`
	Metadata json.RawMessage `json:"fromMetadata"`
}

// selector says which requests a rule is for: those that meet all of its conditions.
type selector struct {
	Headers    []condition `json:"headers"`
	Methods    []condition `json:"methods"`
	Path       *condition  `json:"path"`
	SourceCIDR *condition  `json:"sourceCIDR"`
	Query      []condition `json:"queryParams"`
}

type condition struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Value  string `json:"value"`
	Invert bool   `json:"invert"`
}

// decodeLimit decodes the rateLimit of a BackendTrafficPolicy. It is not ok if there is a problem in it, such as a
// field that the types above lack.
func decodeLimit(to *draft.Findings, n *policy.Node, at source.Place) (o *rateLimit, ok bool) {
	d := json.NewDecoder(bytes.NewReader(policy.AppendJSON(nil, n)))
	d.DisallowUnknownFields()
	err := d.Decode(&o)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		given := cmp.Or(jsonWords[wrong.Value], strings.TrimPrefix(wrong.Value, "number ")) // such as "number -1"
		to.Fail(at.In(wrong.Field), "must be "+wordOf(wrong.Type)+", not "+given)
	case err != nil:
		to.Fail(at, strings.TrimPrefix(err.Error(), "json: "))
	}
	return o, err == nil
}

// jsonWords are what encoding/json calls the kinds of values.
var jsonWords = map[string]string{
	"string": "a text", "number": "a number", "bool": "true or false", "array": "a list", "object": "an object",
}

// wordOf says what the field of a type takes.
func wordOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Uint32:
		return "a whole number from 0 to 4294967295"
	default:
		return "an object"
	}
}
