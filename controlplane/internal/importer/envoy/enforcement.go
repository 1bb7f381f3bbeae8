package envoy

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

// enforcementFields is a configuration of either filter, which has these fields.
type enforcementFields interface {
	GetFilterEnabled() *corev3.RuntimeFractionalPercent
	GetFilterEnforced() *corev3.RuntimeFractionalPercent
	GetResponseHeadersToAdd() []*corev3.HeaderValueOption
	GetRateLimitedAsResourceExhausted() bool
}

// readEnforcement reads how a filter enforces the limits of a configuration, which is its own or that of a route.
func (r *reader) readEnforcement(
	f *listenerFilter, o enforcementFields, at source.Place, status *typev3.HttpStatus,
) *draft.Enforcement {
	e := &draft.Enforcement{At: at, Disabled: f.worksWhere == nowhere}
	enabled := r.fraction(o.GetFilterEnabled(), at.In("filter_enabled"), f.kind.byDefault)
	enforced := r.fraction(o.GetFilterEnforced(), at.In("filter_enforced"), f.kind.byDefault)
	both := enabled * enforced / 100
	switch {
	case enabled == 0:
		e.Disabled = true
		r.Note(at.In("filter_enabled"), "0 percent: the filter does nothing, and its rules are off")
	case enforced == 0:
		e.Shadow = true
		r.Note(at.In("filter_enforced"), "0 percent: its rules are shadow")
	case both < 100:
		e.Percent = uint64(max(1, math.Floor(both)))
		r.Note(at.In("filter_enforced"), "Envoy enforces "+strconv.FormatFloat(both, 'f', -1, 64)+" percent of "+
			"requests, and chooses anew for each. Rules with a key enforce "+strconv.FormatUint(e.Percent, 10)+
			" percent of their keys, always the same ones, and count all requests. Rules without a key are shadow.")
	}
	e.Response = r.readResponse(o, at, status)
	return e
}

// fraction is a share of requests in percent.
func (r *reader) fraction(f *corev3.RuntimeFractionalPercent, at source.Place, byDefault float64) float64 {
	if f == nil {
		return byDefault
	}
	if f.GetRuntimeKey() != "" {
		r.NoteImport("The shares of requests are the configuration's default_value: a policy reads no runtime keys.")
	}
	v := f.GetDefaultValue()
	denominator := int(v.GetDenominator())
	if typev3.FractionalPercent_DenominatorType_name[int32(denominator)] == "" {
		r.Fail(at.In("default_value.denominator"), "must be HUNDRED, TEN_THOUSAND or MILLION")
		return byDefault
	}
	return min(100, float64(v.GetNumerator())/math.Pow10(2*denominator)) // HUNDRED is 0, TEN_THOUSAND 1, MILLION 2
}

// readResponse is the rule's response: a status and headers; nil if it is the usual one.
func (r *reader) readResponse(o enforcementFields, at source.Place, status *typev3.HttpStatus) *draft.Response {
	response := &draft.Response{}
	switch code := status.GetCode(); {
	case code > 599:
		r.Fail(at.In("status.code"), "must be at most 599")
	case code >= 400 && code != 429:
		response.Status = uint32(code)
	}
	response.Headers = r.readHeadersToAdd(o.GetResponseHeadersToAdd(), at)
	if !o.GetRateLimitedAsResourceExhausted() {
		r.NoteImport("A denied gRPC request gets RESOURCE_EXHAUSTED here, and UNAVAILABLE from Envoy's filter " +
			"as it is set. To keep that, add response: {grpc_status: unavailable} to a rule.")
	}
	if response.Status == 0 && len(response.Headers) == 0 {
		return nil
	}
	return response
}

// readHeadersToAdd reads the headers of a denial that a policy can say.
func (r *reader) readHeadersToAdd(list []*corev3.HeaderValueOption, filter source.Place) map[string]string {
	headers := map[string]string{}
	for i, h := range list {
		at := filter.Item("response_headers_to_add", i)
		name := strings.ToLower(h.GetHeader().GetKey())
		value := cmp.Or(h.GetHeader().GetValue(), string(h.GetHeader().GetRawValue()))
		if !request.IsHeaderName(name) {
			r.Fail(at, strconv.Quote(name)+" is not the name of a header")
			continue
		}
		if strings.Contains(strings.ReplaceAll(value, "%%", ""), "%") {
			r.Note(at, "ignored: Envoy's formatter makes the value "+value+" of the header "+name)
			continue
		}
		with := maps.Clone(headers)
		with[name] = value // a policy writes %% too
		if why := noHeaders(with); why != "" {
			r.Note(at, "ignored: the header "+name+" of a denial: "+why)
			continue
		}
		headers = with
	}
	return headers
}

// noHeaders says why a response cannot have these headers, if it cannot.
func noHeaders(headers map[string]string) string {
	text, err := json.Marshal(map[string]any{"version": 1, "rules": []any{
		map[string]any{"name": "all", "limits": []any{}, "response": map[string]any{"headers": headers}},
	}})
	if err != nil {
		panic(err) // texts and lists of them
	}
	var problems policyfile.Errors
	if _, _, _, err := policyfile.Read("", text); errors.As(err, &problems) {
		return problems[0].Message
	}
	return ""
}

// readAnswerHeaders reads a filter's enable_x_ratelimit_headers: if any has it, answers have these headers.
func (r *reader) readAnswerHeaders(version int32) {
	if version == 1 { // DRAFT_VERSION_03, as both filters number it
		r.draft.Headers = "x-ratelimit"
	}
}
