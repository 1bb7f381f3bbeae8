package accesslog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// This file finds out where a format has which field. For example, a log_format of nginx is
// $time_local $request_time:
//
//	column  a value of each line: time_local and request_time
//	use     what a value is for: the time of the request's end, and how long it took in seconds
//	row     names of columns that have a use: that of time_local says also what request_time is beside it
//	place   a column with its use: two, one of FieldTime and one of FieldTook

// column is a value that each line of a format may have.
type column struct {
	name  string                     // as the format spells it: START_TIME(%s), request.uri
	key   string                     // as the table of fields has it, in lower case; empty = it has no meaning
	time  func(string) (int64, bool) // reads a time whose form the format says; nil = any form that has a zone
	width int                        // bytes of a value that always has as many; 0 = it varies
	most  int                        // bytes at which Envoy cuts the value off; 0 = it does not

	// mayBeLine says that values may be request lines, GET /path HTTP/1.1, which have several fields.
	// The variables of a format of text always may, because the format does not say what they hold.
	// Those of a JSON log may if one of the log's first lines has a request line there.
	mayBeLine bool
}

// use is what a value is for.
type use struct {
	field   string
	unit    time.Duration // of a duration that is a number; 0 = unknown
	isEnd   bool          // the time is when the request ended
	isLine  bool          // the field is a part of a request line
	noQuery bool          // the path lacks its query
}

var (
	begin = use{field: FieldTime}
	end   = use{field: FieldTime, isEnd: true}
)

// row says what logs call a field.
type row struct {
	use
	names []string
	isSum bool // the field is the sum of all the names, not the value of the first

	// took names the value, in units of tookIn, that says how long the request took, if it stands beside
	// this time. It is then what FieldTook is, and the rows of FieldTook below are skipped.
	took   string
	tookIn time.Duration
}

// table has the rows of a field in the order in which they are trusted: the first row with a name that
// the format has, and in that row the first such name. JSON logs have most of these names: variables of
// nginx, operators of Envoy in lower case, and what Caddy, Cloudflare, Google, Kong and Traefik write.
// Formats of text have the rest.
var table = []row{
	{use: begin, names: words("start_time"), took: "duration", tookIn: time.Millisecond},
	{use: begin, names: words("startutc"), took: "duration", tookIn: time.Nanosecond},
	{use: begin, names: words("edgestarttimestamp request_creation_time")},
	{use: end, names: words("emit_time"), took: "duration", tookIn: time.Millisecond},
	{use: end, names: words("msec time_iso8601 time_local"), took: "request_time", tookIn: time.Second},
	{use: end, names: words("ts"), took: "duration", tookIn: time.Second},
	{use: end, names: []string{w3cTime}, took: timeTaken, tookIn: time.Second},
	{use: begin, names: words("started_at"), took: "latencies.request", tookIn: time.Millisecond},
	{use: begin, names: words("timestamp"), took: "httprequest.latency", tookIn: time.Second},
	{use: begin, names: words("@timestamp time")},

	{use: use{field: FieldTook, unit: time.Second}, names: words("duration_s")},
	{use: use{field: FieldTook, unit: time.Millisecond}, names: words("duration_ms")},
	{use: use{field: FieldTook, unit: time.Microsecond}, names: words("duration_us")},
	{use: use{field: FieldTook, unit: time.Nanosecond}, names: words("duration_ns")},
	{use: use{field: FieldTook, unit: time.Second}, isSum: true, names: words( // of AWS' load balancers
		"request_processing_time target_processing_time response_processing_time")},
	{use: use{field: FieldTook, unit: time.Millisecond}, names: []string{timeTakenOfIIS}},

	{use: use{field: FieldMethod}, names: words("req(:method) method request_method :method req_method requestmethod " +
		"request.method clientrequestmethod httprequest.requestmethod cs-method")},
	{use: use{field: FieldMethod, isLine: true}, names: words("request url_request")},

	{use: use{field: FieldHost}, names: words("req(:authority) authority :authority host http_host request_authority " +
		"requesthost request.host request.headers.host clientrequesthost httprequest.requesturl " +
		"x-host-header cs-host")},
	{use: use{field: FieldHost, isLine: true}, names: words("url_request")}, // GET http://host/path

	{use: use{field: FieldPath}, names: words("req(:path) path x-envoy-origin-path x-envoy-original-path request_uri " +
		":path requestpath request.uri clientrequesturi httprequest.requesturl")},
	{use: use{field: FieldPath, isLine: true}, names: words("request url_request")},
	{use: use{field: FieldPath, noQuery: true}, names: words( // the first is of sluice render
		"path_without_query path(nq) clientrequestpath cs-uri-stem")},

	{use: use{field: FieldClientIP}, names: words("downstream_remote_address downstream_remote_address_without_port " +
		"remote_addr client_ip clienthost request.client_ip request.remote_ip clientip httprequest.remoteip c-ip")},
	{use: use{field: FieldClientIP}, names: words("req(x-forwarded-for)")}, // Envoy appends the client's address

	{use: use{field: FieldStatus}, names: words("response_code status responsecode status_code downstreamstatus " +
		"edgeresponsestatus response.status httprequest.status sc-status")},
	{use: use{field: FieldRoute}, names: words("route_name")},
	{use: use{field: FieldReceived}, names: words("bytes_received requestcontentsize")},
	{use: use{field: FieldSent}, names: words("body_bytes_sent downstreamcontentsize edgeresponsebodybytes")},
}

func words(text string) []string { return strings.Fields(text) }

// headerNames are what logs call a header.
func headerNames(header string) []string {
	under := strings.ReplaceAll(header, "-", "_")
	return []string{
		"req(" + header + ")", "cs(" + header + ")", "headers." + header, "request.headers." + header, header, under,
		"http_" + under, "request_header_" + under, "req_header_" + under, "request_" + header,
	}
}

// place is where a format has a field.
type place struct {
	column
	use
	at     int  // the column's place among those of a format of text
	needed bool // a request lacks something without it
	had    bool // some line has had a value
}

// is reports whether the place has the field.
func (p *place) is(field string) bool {
	return p.field == field || field == FieldQuery && p.field == FieldPath && !p.noQuery
}

// places are some places, of one format or of several.
type places []*place

// of returns the place that has a field, nil = none has.
func (list places) of(field string) *place {
	i := slices.IndexFunc(list, func(p *place) bool { return p.is(field) })
	if i < 0 {
		return nil
	}
	return list[i]
}

// always are the fields that each log is asked for: whether a line is a request must not
// depend on who reads it.
var always = []string{FieldTime, FieldTook, FieldStatus, FieldMethod, FieldPath}

// placesFor returns the places of the fields that are asked for, where --map says, or where the table
// knows them.
func (f *format) placesFor(o *Options) (list places, err error) {
	known := f.knownPlaces(o.Fields)
	for _, said := range slices.Sorted(maps.Keys(o.Map)) {
		if err := f.applyMap(said, o.Map[said], known); err != nil {
			return nil, err
		}
	}
	times := known[FieldTime]
	isEnd := len(times) > 0 && times[0].isEnd
	if !isEnd && !slices.Contains(o.Wanted, FieldTook) { // nothing uses how long a request took
		delete(known, FieldTook)
	}
	for field, some := range known {
		for _, p := range some {
			p.needed = slices.ContainsFunc(o.Fields, p.is)
			if p.needed || slices.Contains(always, field) || slices.Contains(o.Wanted, field) {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(p, q *place) int {
		return cmp.Or(cmp.Compare(p.field, q.field), cmp.Compare(p.at, q.at))
	})
	return list, nil
}

// knownPlaces returns by field the places that the table knows, and then those of other fields that are asked
// for: of headers, claims and attributes.
func (f *format) knownPlaces(asked []string) map[string]places {
	rows := slices.Clone(table)
	for _, field := range asked {
		rows = append(rows, row{use: use{field: field}, names: namesOfField(field)})
	}
	found := map[string]places{}
	for i := range rows {
		r := &rows[i]
		if found[r.field] != nil {
			continue // an earlier row
		}
		for _, name := range r.names {
			p := f.placeByKey(r.use, name)
			if p == nil {
				continue
			}
			found[r.field] = append(found[r.field], p)
			if took := f.placeByKey(use{field: FieldTook, unit: r.tookIn}, r.took); took != nil {
				found[FieldTook] = append(found[FieldTook], took)
			}
			if !r.isSum {
				break
			}
		}
	}
	return found
}

// placeByKey returns the column with a key as the place of a field; nil = the format has none that can be.
func (f *format) placeByKey(u use, key string) *place {
	isIt := func(c column) bool { return key != "" && c.key == key && (c.mayBeLine || !u.isLine) }
	at := slices.IndexFunc(f.columns, isIt)
	if at < 0 {
		return nil
	}
	return &place{column: f.columns[at], use: u, at: at}
}

// namesOfField are what logs call a field that is not in the table.
func namesOfField(field string) []string {
	header, isHeader := strings.CutPrefix(field, headerPrefix)
	switch {
	case isHeader:
		return headerNames(header)
	case field == FieldQuery: // only a path has it
		return nil
	}
	return []string{field}
}

// applyMap replaces the known place of a field by the one that --map says, as field=name. If the table
// knows that name as well, it says what its values are for.
func (f *format) applyMap(said, name string, known map[string]places) error {
	field, unit := mappedField(said)
	p := &place{column: column{name: name}, use: use{field: field, unit: unit}}
	at := f.columnBySpelling(name)
	switch {
	case at >= 0:
		p.column = f.columns[at]
		p.at = at
	case !f.isOpen:
		return fmt.Errorf("--map %s=%s: the format has no %s, but %s", said, name, name, list(namesOf(f.columns)))
	}
	isSame := func(q *place) bool { return q.name == p.name }
	if unit == 0 && slices.ContainsFunc(known[field], isSame) {
		return nil
	}
	for i := range table {
		r := &table[i]
		if r.field == field && unit == 0 && slices.Contains(r.names, p.key) && (p.mayBeLine || !r.isLine) {
			p.use = r.use
			break
		}
	}
	known[field] = places{p}
	return nil
}

// columnBySpelling returns the index of a column, -1 = there is none. It may be named as in the log, such as
// $uri or uri, or by its header: x-forwarded-for means $http_x_forwarded_for, too.
func (f *format) columnBySpelling(name string) int {
	name = strings.Trim(strings.TrimPrefix(name, "$"), "%")
	at := slices.IndexFunc(f.columns, func(c column) bool { return strings.EqualFold(c.name, name) })
	if at < 0 {
		spelled := headerNames(strings.ToLower(name))
		at = slices.IndexFunc(f.columns, func(c column) bool { return c.key != "" && slices.Contains(spelled, c.key) })
	}
	return at
}

func namesOf(columns []column) (names []string) {
	for i := range columns {
		names = append(names, columns[i].name)
	}
	return names
}
