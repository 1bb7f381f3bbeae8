package envoy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// gatewayLimit is the rateLimit of a BackendTrafficPolicy of Envoy Gateway. What may be absent is a pointer. Items of
// lists are none, so that one that is null is an empty one.
type gatewayLimit struct {
	Type   string        `json:"type"`
	Global *gatewayRules `json:"global"`
	Local  *gatewayRules `json:"local"`
}

type gatewayRules struct {
	Rules []gatewayRule `json:"rules"`
}

type gatewayRule struct {
	Selectors []gatewaySelector `json:"clientSelectors"`
	Limit     *gatewayQuota     `json:"limit"`
	Cost      *gatewayCost      `json:"cost"`
	Shared    bool              `json:"shared"`
	Shadow    bool              `json:"shadowMode"`
	Fields    json.RawMessage   `json:"xRateLimitHeaders"`
}

type gatewayCost struct {
	Request  *gatewayHits `json:"request"`
	Response *gatewayHits `json:"response"`
}

type gatewayHits struct {
	From     string          `json:"from"`
	Number   uint32          `json:"number"`
	Metadata json.RawMessage `json:"metadata"`
}

type gatewayQuota struct {
	Requests uint32          `json:"requests"`
	Unit     string          `json:"unit"`
	Metadata json.RawMessage `json:"fromMetadata"`
}

// gatewaySelector says which requests a rule is for: those that meet all of its conditions.
type gatewaySelector struct {
	Headers    []gatewayMatch `json:"headers"`
	Methods    []gatewayMatch `json:"methods"`
	Path       *gatewayMatch  `json:"path"`
	SourceCIDR *gatewayMatch  `json:"sourceCIDR"`
	Query      []gatewayMatch `json:"queryParams"`
}

type gatewayMatch struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Value  string `json:"value"`
	Invert bool   `json:"invert"`
}

// decodeLimit decodes the rateLimit of a BackendTrafficPolicy. It is not ok if there is a problem in it, such as a
// field that the types above lack.
func (g *gatewayImport) decodeLimit(n *policy.Node, at source.Place) (o *gatewayLimit, ok bool) {
	d := json.NewDecoder(bytes.NewReader(policy.AppendJSON(nil, n)))
	d.DisallowUnknownFields()
	err := d.Decode(&o)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		given := cmp.Or(jsonWords[wrong.Value], strings.TrimPrefix(wrong.Value, "number ")) // such as "number -1"
		g.Fail(at.In(wrong.Field), "must be "+wordOf(wrong.Type)+", not "+given)
	case err != nil:
		g.Fail(at, strings.TrimPrefix(err.Error(), "json: "))
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
