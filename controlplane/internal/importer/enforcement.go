package importer

import (
	"math"
	"strconv"
	"strings"
)

// enforcement is what a filter of Envoy says about all its limits: for which
// share of requests they hold, and how a denial looks.
type enforcement struct {
	off, shadow bool
	percent     uint64 // 0 = all
	answer      string
}

// read reads filter_enabled and filter_enforced. With an absent field the
// service's filter enforces all.
func (e *enforcement) read(o *object) { e.set(o, 100, 100) }

// readLocal is read for the local filter, where an absent field is 0 percent.
func (e *enforcement) readLocal(o *object) { e.set(o, 0, 0) }

func (e *enforcement) set(o *object, enabled, enforced float64) {
	enabled = fraction(o, "filter_enabled", enabled)
	enforced = fraction(o, "filter_enforced", enforced)
	both := enabled * enforced / 100
	switch {
	case enabled == 0:
		e.off = true
		o.note("filter_enabled", "filter_enabled is 0 percent: the filter does nothing, and its rules are off.")
	case enforced == 0:
		e.shadow = true
		o.note("filter_enforced", "filter_enforced is 0 percent: its rules are shadow.")
	case both < 100:
		e.percent = uint64(max(1, math.Floor(both)))
		o.note("filter_enforced", "Envoy enforces "+strconv.FormatFloat(both, 'f', -1, 64)+" percent of requests, chosen anew for each; here it is "+strconv.FormatUint(e.percent, 10)+" percent of keys, always the same, and all are counted.")
	}
}

// fraction reads a RuntimeFractionalPercent in percent.
func fraction(o *object, field string, absent float64) float64 {
	f := o.child(field)
	if f == nil {
		return absent
	}
	if key := f.text("runtime_key"); key != "" {
		f.note("runtime_key", "the runtime key "+key+" of "+field+" is not asked here: apply another policy to change a share")
	}
	v := f.child("default_value")
	per := map[string]float64{"": 100, "HUNDRED": 100, "TEN_THOUSAND": 10_000, "MILLION": 1_000_000, "0": 100, "1": 10_000, "2": 1_000_000}[v.text("denominator")]
	if per == 0 {
		v.fail("denominator", "must be HUNDRED, TEN_THOUSAND or MILLION")
		return absent
	}
	return min(100, float64(v.integer("numerator", 0))*100/per)
}

// response reads how a denial looks: status, headers and gRPC status.
func (e *enforcement) response(o *object, status string) {
	var fields []string
	if s := o.child(status); s != nil {
		code := statusNames[s.text("code")]
		if code == 0 {
			code = s.integer("code", 429)
		}
		if code > 599 {
			s.fail("code", "must be at most 599")
		} else if code >= 400 && code != 429 {
			fields = append(fields, "status: "+strconv.FormatUint(code, 10))
		}
	}
	var headers []string
	for _, h := range o.children("response_headers_to_add") {
		h.ignore("append", "append_action", "keep_empty_value")
		kv := h.child("header")
		name, value := strings.ToLower(kv.text("key")), kv.text("value")
		if !isHeaderName(name) {
			h.fail("header", "must have the name of a header as key, not "+strconv.Quote(name))
			continue
		}
		if strings.Contains(strings.ReplaceAll(value, "%%", ""), "%") {
			kv.note("value", "the header "+name+" of a denial has the value "+value+", made by Envoy's formatter: it was left out")
			continue
		}
		value = strings.ReplaceAll(strings.ReplaceAll(value, "%%", "%"), "%", "%%")
		headers = append(headers, scalar(name)+": "+quoted(value))
	}
	if len(headers) > 0 {
		fields = append(fields, "headers: {"+strings.Join(headers, ", ")+"}")
	}
	if !o.boolean("rate_limited_as_resource_exhausted", false) {
		o.in.notes.add(place{}, "A denied gRPC request gets RESOURCE_EXHAUSTED here, from Envoy's filter as it is set UNAVAILABLE: response: {grpc_status: unavailable} in a rule would keep that.")
	}
	o.ignore("enable_retry_after_header") // a denial has it here
	if len(fields) > 0 {
		e.answer = "{" + strings.Join(fields, ", ") + "}"
	}
}

// statusNames are Envoy's StatusCode by name, those a denial may have.
var statusNames = map[string]uint64{
	"BadRequest": 400, "Unauthorized": 401, "PaymentRequired": 402, "Forbidden": 403, "NotFound": 404,
	"MethodNotAllowed": 405, "NotAcceptable": 406, "RequestTimeout": 408, "Conflict": 409, "Gone": 410,
	"TooManyRequests": 429, "InternalServerError": 500, "NotImplemented": 501, "BadGateway": 502,
	"ServiceUnavailable": 503, "GatewayTimeout": 504,
}

// headersOf is the policy's headers field for enable_x_ratelimit_headers.
func headersOf(o *object) string {
	switch o.text("enable_x_ratelimit_headers") {
	case "DRAFT_VERSION_03", "1":
		return "x-ratelimit"
	}
	return ""
}

// apply makes the rules be enforced so. A rule with one key cannot be enforced
// for a share of keys, and denies nobody then.
func (e *enforcement) apply(rules []rule, n *notes) {
	for i := range rules {
		r := &rules[i]
		q := *r.quota
		r.quota = &q
		r.response = e.answer
		r.off = r.off || e.off
		q.shadow = q.shadow || e.shadow
		if e.percent > 0 && !q.shadow {
			q.percent = e.percent
			if len(r.key) == 0 {
				q.percent, q.shadow = 0, true
				text := "It has one key for all requests, of which no share can be enforced: it is shadow."
				r.comments = append(r.comments, text)
				n.add(q.place, text)
			}
		}
	}
}
