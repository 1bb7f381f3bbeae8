package accesslog

import (
	"fmt"
	"time"
)

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

// UnknownLines is the error of a log of which too few lines are read.
type UnknownLines struct{ Stats }

func (u *UnknownLines) Error() string {
	return fmt.Sprintf("%d of the first %d lines are of another format; line %d of %s is %q: %s",
		u.Unknown, u.Lines, u.Example.Number, u.Example.Log, u.Example.Text, u.Example.Why)
}

// CheckUnknown refuses figures that more than a share of the lines would miss.
func (s *Stats) CheckUnknown(most float64) error {
	if float64(s.Unknown) > most*float64(s.Lines) {
		return &UnknownLines{*s}
	}
	if 2*s.Refused > s.Lines {
		return fmt.Errorf("%d of %d lines have a path that Envoy answers 400, such as %q: say --map path=NAME if another "+
			"field has the path", s.Refused, s.Lines, s.BadPath)
	}
	return nil
}

// Disorder is the error of a log of which too many lines stand far from their place.
type Disorder struct{ Stats }

func (d *Disorder) Error() string {
	return fmt.Sprintf("%d of the first %d requests stand further from their place in time than lines are sorted",
		d.Late, d.Requests)
}

// CheckOrder refuses figures in which more than a share of the requests count later
// than they came.
func (s *Stats) CheckOrder(most float64) error {
	if float64(s.Late) > most*float64(s.Requests) {
		return &Disorder{*s}
	}
	return nil
}
