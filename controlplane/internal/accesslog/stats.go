package accesslog

import "time"

// Stats count the lines of all files.
type Stats struct {
	Lines    int64    `json:"lines"`
	Requests int64    `json:"requests"`
	Unknown  int64    `json:"unknown"`    // that the format does not read
	Example  *Example `json:"example"`    // the first unknown line
	NoHTTP   int64    `json:"no_request"` // of connections that brought none
	Refused  int64    `json:"refused"`    // with a path that Envoy answers 400
	BadPath  string   `json:"bad_path"`   // the first such path
	Unended  int64    `json:"unended"`    // last lines without an end, left out
	Late     int64    `json:"late"`       // further from their place than they may stand
	FirstNs  int64    `json:"first_ns"`   // of the requests
	LastNs   int64    `json:"last_ns"`
	GrainNs  int64    `json:"grain_ns"` // of the log's clock; of several, of the coarsest

	Readings []Reading `json:"readings,omitempty"` // what was recognized
	Empty    []string  `json:"empty,omitempty"`    // fields that were asked for, and that no line had
	NoStatus bool      `json:"no_status"`          // no line says how the request was answered
}

// Reading is what the format of a log was taken for, and where it has the fields that
// were asked for.
type Reading struct {
	Log    string            `json:"log"`
	Format string            `json:"format"`
	Fields map[string]string `json:"fields"`
}

// Example is an unknown line.
type Example struct {
	Log    string `json:"log"`
	Number int64  `json:"line"`
	Text   string `json:"text"`
	Why    string `json:"why"`
}

// Time returns an instant of the statistics.
func Time(ns int64) time.Time { return time.Unix(0, ns).UTC() }
