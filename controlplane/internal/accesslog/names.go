package accesslog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// meaning is what a value of a line is for.
type meaning struct {
	field  string
	time   func(string) (ns int64, ok bool) // of a time
	unit   time.Duration                    // of a number that is a duration, and of that beside a time; 0 = unknown
	part   bool                             // the duration is one of several that add up
	end    bool                             // the time is that of the request's end
	line   bool                             // the value is a request line; the field is a part of it
	bare   bool                             // the path lacks the query
	spare  bool                             // it is the field's where the log has no other
	layout string                           // of a time of one
	most   int                              // bytes, at which the format cuts the value off; 0 = it does not
}

// meaningOf returns what a field's value is for.
func meaningOf(field string) meaning {
	if field == FieldTime {
		return meaning{field: field, time: anyTime}
	}
	return meaning{field: field}
}

// names are what logs call the fields, in lower case; of those of one field the surest
// first. JSON logs have most of them: variables of nginx, operators of Envoy, and what
// Caddy, Cloudflare, Google, Kong and Traefik write. Logs that name their fields have the rest.
var names = []struct {
	meaning
	took  string // of a time: what says there how long the request took
	names []string
}{
	{meaning{field: FieldTime, time: anyTime, unit: time.Millisecond}, "duration", strings.Fields("start_time")},
	{meaning{field: FieldTime, time: anyTime, unit: time.Nanosecond}, "duration", strings.Fields("startutc")},
	{meaning{field: FieldTime, time: anyTime}, "", strings.Fields("edgestarttimestamp request_creation_time")},
	{meaning{field: FieldTime, time: anyTime, end: true, unit: time.Second}, "request_time", strings.Fields("msec time_iso8601 time_local")},
	{meaning{field: FieldTime, time: anyTime, end: true, unit: time.Second}, "duration", strings.Fields("ts")},
	{meaning{field: FieldTime, time: anyTime, unit: time.Millisecond}, "latencies.request", strings.Fields("started_at")},
	{meaning{field: FieldTime, time: anyTime, unit: time.Second}, "httprequest.latency", strings.Fields("timestamp")},
	{meaning{field: FieldTime, time: anyTime}, "", strings.Fields("@timestamp time")},
	{meaning{field: FieldTook, unit: time.Second}, "", []string{secondsField}},
	{meaning{field: FieldTook, unit: time.Millisecond}, "", []string{millisecondsField}},
	{meaning{field: FieldTook, unit: time.Microsecond}, "", []string{microsecondsField}},
	{meaning{field: FieldTook, unit: time.Nanosecond}, "", []string{nanosecondsField}},
	{meaning{field: FieldMethod}, "", strings.Fields("method request_method :method req_method requestmethod " +
		"request.method clientrequestmethod httprequest.requestmethod cs-method")},
	{meaning{field: FieldMethod, line: true}, "", strings.Fields("request url_request")},
	{meaning{field: FieldHost}, "", strings.Fields("authority :authority host http_host request_authority requesthost " +
		"request.host request.headers.host clientrequesthost httprequest.requesturl x-host-header cs-host")},
	{meaning{field: FieldPath}, "", strings.Fields("path x-envoy-origin-path x-envoy-original-path request_uri :path " +
		"requestpath request.uri clientrequesturi httprequest.requesturl")},
	{meaning{field: FieldHost, line: true}, "", strings.Fields("url_request")}, // of a load balancer, which logs GET http://host/path
	{meaning{field: FieldPath, line: true}, "", strings.Fields("request url_request")},
	{meaning{field: FieldPath, bare: true}, "", strings.Fields("path_without_query clientrequestpath cs-uri-stem")}, // the first as sluice render has Envoy write it
	{meaning{field: FieldClientIP}, "", strings.Fields("downstream_remote_address downstream_remote_address_without_port remote_addr client_ip clienthost " +
		"request.client_ip request.remote_ip clientip httprequest.remoteip c-ip")},
	{meaning{field: FieldStatus}, "", strings.Fields("response_code status responsecode status_code downstreamstatus " +
		"edgeresponsestatus response.status httprequest.status sc-status")},
	{meaning{field: FieldRoute}, "", strings.Fields("route_name")},
	{meaning{field: FieldReceived}, "", strings.Fields("requestcontentsize")},
	{meaning{field: FieldSent}, "", strings.Fields("body_bytes_sent downstreamcontentsize edgeresponsebodybytes")},
}

// headerNames are what JSON logs call a header.
func headerNames(header string) []string {
	under := strings.ReplaceAll(header, "-", "_")
	return []string{
		"headers." + header, "request.headers." + header, header, under, "http_" + under, "request_header_" + under,
		"req_header_" + under, "request_" + header,
	}
}

// place is where a format has a field.
type place struct {
	name string // as the format spells it
	meaning
	needed bool // each request must have it, as far as it is one of a request's own fields
	piece  int  // of a text format
	read   int  // the last line of a JSON format that had it
	had    bool // some line has had a value
}

// meaningsOf returns what a name of a text format is for.
func meaningsOf(name string) (meanings []meaning) {
	for i := range names {
		if slices.Contains(names[i].names, name) {
			meanings = append(meanings, names[i].meaning)
		}
	}
	if header, ok := strings.CutPrefix(name, "http_"); ok && len(meanings) == 0 {
		meanings = append(meanings, meaningOf(HeaderField(strings.ReplaceAll(header, "_", "-"))))
	} else if header, ok := strings.CutPrefix(name, "cs("); ok { // cs(User-Agent), of a log that says its #Fields
		meanings = append(meanings, meaningOf(HeaderField(strings.TrimSuffix(header, ")"))))
	}
	switch name {
	case "request_time":
		meanings = append(meanings, meaning{field: FieldTook, unit: time.Second})
	case "request_processing_time", "target_processing_time", "response_processing_time": // of AWS' load balancers
		meanings = append(meanings, meaning{field: FieldTook, unit: time.Second, part: true})
	}
	return meanings
}

// mapped returns the field that --map names, and what its value is for there.
func mapped(said string) (m meaning) {
	for _, n := range names {
		if n.field == FieldTook && n.names[0] == said {
			return n.meaning
		}
	}
	return meaningOf(said)
}

// better reports whether a place is surer: a time of the begin than one of the end, a
// path with its query than one without, Envoy's own address of the client than a header.
func (p *place) better(than *place) bool {
	return than.end && !p.end || than.bare && !p.bare || than.spare && !p.spare
}

// always are the fields that each log is asked for: whether a line is of a request
// does not depend on who reads it.
var always = []string{FieldTime, FieldTook, FieldStatus, FieldMethod, FieldPath}

// choose picks one place of each field that is wanted, and all of one in parts: where Map says, or the
// surest. A name that is none of a field's is among all, too; one that is open may have others still.
func (o *Options) choose(f *format, all []place, open bool) error {
	best := map[string]*place{}
	for i := range all {
		p := &all[i]
		if p.field == "" {
			f.names = append(f.names, p.name)
		} else if have := best[p.field]; have == nil || p.better(have) {
			best[p.field] = p
		}
	}
	for said := range o.Map {
		p, err := o.placeOf(said, all, open)
		if err != nil {
			return fmt.Errorf("--map %s=%s: %w, but %s", said, o.Map[said], err, list(f.names))
		}
		best[p.field] = p
	}
	if t := best[FieldTime]; (t == nil || !t.end) && !slices.Contains(o.Wanted, FieldTook) {
		delete(best, FieldTook)
	}
	for field, p := range best {
		p.needed = slices.ContainsFunc(o.Fields, func(f string) bool { return find([]*place{p}, f) != nil })
		if !p.needed && !slices.Contains(always, field) && !slices.Contains(o.Wanted, field) {
			continue
		}
		f.places = append(f.places, p)
		for i := range all {
			if other := &all[i]; p.part && other.part && other.name != p.name {
				f.places = append(f.places, other)
			}
		}
	}
	slices.SortFunc(f.places, func(p, q *place) int { return cmp.Compare(p.field, q.field) })
	return nil
}

// placeOf returns the place that Map says of a field.
func (o *Options) placeOf(said string, all []place, open bool) (*place, error) {
	m := mapped(said)
	name := strings.Trim(strings.TrimPrefix(o.Map[said], "$"), "%")
	i := slices.IndexFunc(all, func(p place) bool {
		asPeopleSay := !open && p.field == HeaderField(strings.ToLower(name))
		return asPeopleSay || strings.EqualFold(p.name, name)
	})
	p := place{name: o.Map[said]}
	if i >= 0 {
		p = all[i]
	} else if !open {
		return nil, fmt.Errorf("the format has no %s", name)
	}
	i = slices.IndexFunc(all, func(q place) bool { return q.name == p.name && q.field == m.field })
	if i >= 0 && (m.field != FieldTook || m.unit == 0) {
		p = all[i]
	} else {
		p.meaning = m
	}
	return &p, nil
}
