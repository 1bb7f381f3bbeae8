package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// format is how the lines of a log are read.
type format struct {
	places []*place // where it has the fields that are asked for
	names  []string // all, or those of the begin of the log
	read   reader
}

// reader takes what a line says. An error says why the line is none of the format.
type reader func(line string, d *Request) error

const (
	common   = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent`
	combined = common + ` "$http_referer" "$http_user_agent"`

	envoyStart = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% `
	envoyEnd   = `%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" ` +
		`"%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`

	haproxy = `%DOWNSTREAM_REMOTE_ADDRESS% [%START_TIME(%d/%b/%Y:%H:%M:%S.%3f)%] %FRONTEND% %BACKEND% ` +
		`%TR%/%TW%/%TC%/%TT%/%DURATION% %RESPONSE_CODE% %BYTES% %REQUEST_COOKIE% %RESPONSE_COOKIE% %STATE% %CONNECTIONS% ` +
		`%QUEUES% "%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%"`

	albNamed = `$type $response_time $elb $client_ip $target $request_processing_time $target_processing_time ` +
		`$response_processing_time $status $target_status $received_bytes $sent_bytes "$url_request" "$http_user_agent" ` +
		`$ssl_cipher $ssl_protocol $target_group "$trace_id" "$domain_name" "$certificate" $rule_priority ` +
		`$request_creation_time "$actions" "$redirect_url" "$error_reason" "$target_list" "$target_status_list" ` +
		`"$classification" "$classification_reason"`
)

// textFormats are the formats of text with a name. Without a name given, that which
// reads most of the lines is taken, the first of equals.
var textFormats = []struct{ name, text string }{
	{"istio", envoyStart + `%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" ` +
		envoyEnd + ` %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% ` +
		`%REQUESTED_SERVER_NAME% %ROUTE_NAME%`},
	{"envoy", envoyStart + envoyEnd},
	{"ingress-nginx", combined + ` $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] ` +
		`$upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id`},
	{"main", combined + ` "$http_x_forwarded_for"`}, // of nginx' packages
	{"kong", combined + ` kong_request_id: "$kong_request_id"`},
	{"traefik", strings.Replace(combined, "$time_local", "$start_time", 1) +
		` $request_count "$router" "$server_url" ${duration_ms}ms`},
	{"apisix", `$remote_addr - $remote_user [$time_local] $http_host "$request" $status $body_bytes_sent $request_time ` +
		`"$http_referer" "$http_user_agent" $upstream_addr $upstream_status $upstream_response_time "$upstream_url"`},
	{"haproxy", `%SYSLOG%]: ` + haproxy},
	{"haproxy", haproxy},
	{"alb", albNamed + ` $conn_trace_id "$transformed_host" "$transformed_uri" "$transform_status"`},
	{"alb", albNamed + ` $conn_trace_id`},
	{"alb", albNamed},
	{"combined", combined},
	{"nginx", combined},
	{"common", common},
}

// The formats whose names stand in the log.
const (
	jsonFormat = "json"
	w3cFormat  = "w3c"
)

// fieldsLine begins the line of a log that names its fields.
const fieldsLine = "#Fields:"

// newW3C is the format that a line of #Fields says, nil without one: the extended log
// format of the W3C, as CloudFront and IIS write it.
func (o *Options) newW3C(sample []string) (*format, error) {
	var names []string
	separator := " "
	for _, line := range sample {
		if fields, ok := strings.CutPrefix(line, fieldsLine); ok && len(names) == 0 {
			names = strings.Fields(fields)
		} else if strings.Contains(line, "\t") {
			separator = "\t"
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	t := &text{fields: names}
	unit := time.Second // as the W3C and CloudFront have it
	if slices.Contains(names, "sc-win32-status") || slices.ContainsFunc(sample, isOfIIS) {
		unit = time.Millisecond
	}
	for i, name := range names {
		switch {
		case name == "time" && i > 0 && names[i-1] == "date":
			layout := "2006-01-02" + separator + "15:04:05"
			at := meaning{field: FieldTime, time: byLayout(layout), end: slices.Contains(names, timeTaken)}
			t.pieces[len(t.pieces)-1] = piece{"date time", []meaning{at}, separator, len(layout)}
		case name == timeTaken:
			t.pieces = append(t.pieces, piece{name: name, meanings: []meaning{{field: FieldTook, unit: unit}}, after: separator})
		default:
			t.pieces = append(t.pieces, piece{name: name, meanings: meaningsOf(strings.ToLower(name)), after: separator})
		}
	}
	t.pieces[len(t.pieces)-1].after = ""
	return t.end(o)
}

// timeTaken is how long a request took until the time of its line.
const timeTaken = "time-taken"

func isOfIIS(line string) bool { return strings.HasPrefix(line, "#Software: Microsoft") }

// FormatNames lists the formats with a name.
func FormatNames() (names []string) {
	for _, f := range textFormats {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return append(slices.Compact(names), jsonFormat, w3cFormat)
}

// recognize returns the format that the caller has named or written out, or the one that
// reads most of the sample of a log.
func (o *Options) recognize(log string, sample []string) (f *format, name string, err error) {
	isObject := func(line string) bool { return strings.HasPrefix(line, "{") }
	said := strings.TrimSpace(o.Format)
	switch {
	case said == jsonFormat, said == "" && 2*count(sample, isObject) >= max(len(sample), 1):
		f, err := o.newObject(log, sample)
		return f, jsonFormat, err
	case isObject(said):
		f, err := o.compileObject(said)
		return f, said, err
	case strings.ContainsAny(said, "%$"):
		f, err := o.compileText(said)
		return f, said, err
	}
	if said == w3cFormat || said == "" {
		if f, err = o.newW3C(sample); f != nil {
			return f, w3cFormat, err
		}
	}
	most, best := 0, ""
	for _, known := range textFormats {
		if said != "" && said != known.name {
			continue
		}
		if f, err = new(Options).compileText(known.text); err != nil {
			return nil, "", err
		}
		n := count(sample, func(line string) bool {
			err := f.read(line, &Request{})
			return err == nil || errors.Is(err, errNoHTTP)
		})
		if n > most || best == "" && said != "" {
			most, name, best = n, known.name, known.text
		}
	}
	switch {
	case best == "" && said != "":
		return nil, "", fmt.Errorf("--format %s: there is no such format: it is one of %s, or the format itself "+
			"as Envoy or nginx has it", said, strings.Join(FormatNames(), ", "))
	case said == "" && 2*most < max(len(sample), 1):
		return nil, "", unknownFormat(log, clip(strings.Join(sample[:min(len(sample), 1)], "")), "")
	}
	f, err = o.compileText(best)
	return f, name, err
}

func count(lines []string, is func(string) bool) (n int) {
	for _, line := range lines {
		if is(line) {
			n++
		}
	}
	return n
}
