package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// format is how the lines of a log are read. It serves one file and one line at a time: what read cuts is
// good until the next line, and places remember whether they have had a value.
type format struct {
	name    string
	columns []column // the values that lines are known to have
	isOpen  bool     // lines may have other values, too
	places  places   // of the fields that are asked for

	// read gives a request the values of a line. An error says why the line does not fit.
	read func(line string, wanted places, r *Request) error
}

// request reads the request of a line. With an error the request has what was read before it.
func (f *format) request(line string) (*Request, error) {
	r := &Request{}
	if err := f.read(line, f.places, r); err != nil {
		return r, err
	}
	return r, f.finish(r)
}

// fits reports whether a line is of the format.
func (f *format) fits(line string) bool {
	_, err := f.request(line)
	return err == nil || errors.Is(err, errNoHTTP) || errors.Is(err, errBadPath)
}

const (
	common   = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent`
	combined = common + ` "$http_referer" "$http_user_agent"`

	ingressNginx = combined + ` $request_length $request_time [$proxy_upstream_name] ` +
		`[$proxy_alternative_upstream_name] $upstream`
	traefik = `$remote_addr - $remote_user [$start_time] "$request" $status $body_bytes_sent "$http_referer" ` +
		`"$http_user_agent" $request_count "$router" "$server_url" ${duration_ms}ms`
	apisix = `$remote_addr - $remote_user [$time_local] $http_host "$request" $status $body_bytes_sent $request_time ` +
		`"$http_referer" "$http_user_agent" $upstream "$upstream_url"`

	envoyBegin = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% ` +
		`%RESPONSE_FLAGS% `
	envoyEnd = `%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% ` +
		`"%REQ(X-FORWARDED-FOR)%" ` +
		`"%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`
	istio = envoyBegin + `%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% ` +
		`"%UPSTREAM_TRANSPORT_FAILURE_REASON%" ` + envoyEnd + ` %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% ` +
		`%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%`

	syslog       = `%SYSLOG%]: `
	haproxyBegin = `%DOWNSTREAM_REMOTE_ADDRESS% [%START_TIME(%d/%b/%Y:%H:%M:%S.%3f)%] %FRONTEND% %BACKEND% ` +
		`%TR%/%TW%/%TC%/%TT%/%DURATION% %RESPONSE_CODE% %BYTES% %REQUEST_COOKIE% %RESPONSE_COOKIE% %STATE% ` +
		`%CONNECTIONS% %QUEUES% `
	haproxyOneHeaders  = `{%HEADERS%} ` // that it was told to capture
	haproxyBothHeaders = `{%REQUEST_HEADERS%} {%RESPONSE_HEADERS%} `
	haproxyEnd         = `"%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%"`

	alb = `$type $response_time $elb $client_ip $target $request_processing_time $target_processing_time ` +
		`$response_processing_time $status $target_status $received_bytes $sent_bytes ` +
		`"$url_request" "$http_user_agent" ` +
		`$ssl_cipher $ssl_protocol $target_group "$trace_id" "$domain_name" "$certificate" $rule_priority ` +
		`$request_creation_time "$actions" "$redirect_url" "$error_reason" "$target_list" "$target_status_list" ` +
		`"$classification" "$classification_reason"`
	albConnection = alb + ` $conn_trace_id`
)

type textFormat struct{ name, text string }

// textFormats are the formats of text with a name, some in several versions.
var textFormats = []textFormat{
	{"istio", istio},
	{"envoy", envoyBegin + envoyEnd},
	{"ingress-nginx", ingressNginx},
	{"main", combined + ` "$http_x_forwarded_for"`}, // of nginx' packages
	{"kong", combined + ` kong_request_id: "$kong_request_id"`},
	{"traefik", traefik},
	{"apisix", apisix},
	{"haproxy", syslog + haproxyBegin + haproxyEnd},
	{"haproxy", syslog + haproxyBegin + haproxyOneHeaders + haproxyEnd},
	{"haproxy", syslog + haproxyBegin + haproxyBothHeaders + haproxyEnd},
	{"haproxy", haproxyBegin + haproxyEnd},
	{"haproxy", haproxyBegin + haproxyOneHeaders + haproxyEnd},
	{"haproxy", haproxyBegin + haproxyBothHeaders + haproxyEnd},
	{"alb", alb},
	{"alb", albConnection},
	{"alb", albConnection + ` "$transformed_host" "$transformed_uri" "$transform_status"`},
	{"combined", combined},
	{"nginx", combined},
	{"common", common},
}

// The formats whose lines name their values.
const (
	jsonFormat = "json"
	w3cFormat  = "w3c"
)

// FormatNames lists the formats with a name.
func FormatNames() (names []string) {
	for _, f := range textFormats {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return append(slices.Compact(names), jsonFormat, w3cFormat)
}

// formatOf returns the format that the caller has named or written out, or the one that the
// first lines of a log have.
func (o *Options) formatOf(log string, sample []string) (f *format, err error) {
	switch said := strings.TrimSpace(o.Format); {
	case said == "":
		f, err = detect(log, sample)
	case said == jsonFormat:
		f, err = newJSON(log, sample)
	case said == w3cFormat:
		f, err = newW3C(log, sample)
	case isObject(said):
		f, err = compileJSON(said)
	case strings.ContainsAny(said, "%$"):
		f, err = newText(said, said)
	default:
		f, err = named(said, sample)
	}
	if err != nil {
		return nil, err
	}
	f.places, err = f.placesFor(o)
	return f, err
}

// detect finds out the format of a log.
func detect(log string, sample []string) (*format, error) {
	most := max(len(sample), 1)
	switch {
	case 2*countLines(sample, isObject) >= most:
		return newJSON(log, sample)
	case slices.ContainsFunc(sample, isFieldsLine):
		return newW3C(log, sample)
	}
	f, fitting, err := bestFit(textFormats, sample)
	if err == nil && 2*fitting < most {
		return nil, unreadable(log, sample, "")
	}
	return f, err
}

func isObject(line string) bool { return strings.HasPrefix(line, "{") }

// named returns the version of a named format that fits most of the lines.
func named(name string, sample []string) (*format, error) {
	isOther := func(f textFormat) bool { return f.name != name }
	versions := slices.DeleteFunc(slices.Clone(textFormats), isOther)
	if len(versions) == 0 {
		return nil, fmt.Errorf("--format %s: there is no such format: it is one of %s, or the format itself "+
			"as Envoy or nginx has it", name, strings.Join(FormatNames(), ", "))
	}
	f, _, err := bestFit(versions, sample)
	return f, err
}

// bestFit returns the format that fits most of the lines, and how many. Of equals it is the first.
func bestFit(formats []textFormat, sample []string) (best *format, most int, err error) {
	for _, known := range formats {
		f, err := newText(known.name, known.text)
		if err != nil {
			return nil, 0, err
		}
		f.places, err = f.placesFor(&Options{}) // those that each log is asked for
		if err != nil {
			return nil, 0, err
		}
		n := countLines(sample, f.fits)
		if best == nil || n > most {
			best, most = f, n
		}
	}
	return best, most, nil
}

func countLines(lines []string, is func(string) bool) (n int) {
	for _, line := range lines {
		if is(line) {
			n++
		}
	}
	return n
}

// w3c is the extended log format of the W3C, as CloudFront and IIS write it. Lines that begin
// with # are comments, and one of them says the format: it names the values.
type w3c struct {
	*text
	fields  string // as the log's first such line says
	isOther bool   // the last such line says others
}

const (
	fieldsMark     = "#Fields:"
	w3cTime        = "date time"         // two values that are one time, of the request's end
	timeTaken      = "time-taken"        // how long a request took until then: seconds
	timeTakenOfIIS = "time-taken of iis" // milliseconds
)

func isFieldsLine(line string) bool { return strings.HasPrefix(line, fieldsMark) }

// isIIS reports whether a comment is of IIS.
func isIIS(line string) bool {
	hasItsField := isFieldsLine(line) && strings.Contains(line, "sc-win32-status")
	return hasItsField || strings.HasPrefix(line, "#Software: Microsoft")
}

// newW3C makes the format that the log says.
func newW3C(log string, sample []string) (*format, error) {
	first := slices.IndexFunc(sample, isFieldsLine)
	if first < 0 {
		return nil, unreadable(log, sample, "no line begins with "+fieldsMark)
	}
	names := strings.Fields(strings.TrimPrefix(sample[first], fieldsMark))
	if len(names) == 0 {
		return nil, unreadable(log, sample[first:], "it names no values")
	}
	separator := " "
	hasTab := func(line string) bool { return !isComment(line) && strings.Contains(line, "\t") }
	if slices.ContainsFunc(sample, hasTab) {
		separator = "\t"
	}
	text := "${" + strings.Join(names, "}"+separator+"${") + "}"
	text = strings.Replace(text, "${date}"+separator+"${time}", "${"+w3cTime+"}", 1)
	t, err := compile(text, nginxSyntax)
	if err != nil {
		return nil, err
	}
	if at := slices.Index(namesOf(t.columns), timeTaken); at >= 0 && slices.ContainsFunc(sample, isIIS) {
		t.columns[at].key = timeTakenOfIIS
	}
	l := &w3c{text: t, fields: strings.Join(names, " ")}
	return &format{name: w3cFormat, columns: t.columns, read: l.read}, nil
}

func isComment(line string) bool { return strings.HasPrefix(line, "#") }

// read reads a line.
func (l *w3c) read(line string, wanted places, r *Request) error {
	if isFieldsLine(line) {
		names := strings.Fields(strings.TrimPrefix(line, fieldsMark))
		l.isOther = strings.Join(names, " ") != l.fields
	}
	switch {
	case isComment(line):
		return errComment
	case l.isOther:
		return errors.New("the " + fieldsMark + " before it are not the first of the log")
	}
	return l.text.read(line, wanted, r)
}
