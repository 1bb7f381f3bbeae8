package testfile

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Reporter writes what comes of tests, as they end.
type Reporter interface {
	// Test is told of each test.
	Test(file string, r *Result) error
	// File is told when all tests of a file have ended.
	File(o *Outcome) error
}

// Text writes for people, as go test does.
type Text struct {
	To      io.Writer
	Verbose bool
}

// Test implements Reporter.
func (t Text) Test(file string, r *Result) error {
	word := "PASS"
	if len(r.Failures) > 0 {
		word = "FAIL"
	} else if !t.Verbose {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s: %s (%s)\n", word, printable.Text(r.Name), seconds(r.Took))
	for i := range r.Failures {
		f := &r.Failures[i]
		for j, line := range strings.Split(f.String(), "\n") {
			if j == 0 {
				line = fmt.Sprintf("%s:%d: %s", file, f.Line, line)
			}
			fmt.Fprintf(&b, "    %s\n", printable.Text(line))
		}
	}
	for _, line := range r.Log {
		fmt.Fprintf(&b, "    %s\n", printable.Text(line))
	}
	_, err := io.WriteString(t.To, b.String())
	return err
}

// File implements Reporter.
func (t Text) File(o *Outcome) error {
	var b strings.Builder
	switch {
	case o.Failed() > 0:
		fmt.Fprintf(&b, "FAIL  %s  %s\n", printable.Text(o.Name), seconds(o.Took))
	case len(o.Results) == 0:
		fmt.Fprintf(&b, "ok    %s  %s [no tests to run]\n", printable.Text(o.Name), seconds(o.Took))
	default:
		fmt.Fprintf(&b, "ok    %s  %s\n", printable.Text(o.Name), seconds(o.Took))
	}
	_, err := io.WriteString(t.To, b.String())
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }

// JSON writes for programs: an object a line for each test, and for each file.
type JSON struct{ To io.Writer }

// jsonLine is a line. A test has a name and failures, a file has counts.
type jsonLine struct {
	Event    string        `json:"event"` // test or file
	File     string        `json:"file"`
	Test     string        `json:"test,omitempty"`
	Result   string        `json:"result"` // pass, fail
	Seconds  float64       `json:"seconds"`
	Tests    *int          `json:"tests,omitempty"`
	Failed   *int          `json:"failed,omitempty"`
	Failures []jsonFailure `json:"failures,omitempty"`
	Log      []string      `json:"log,omitempty"`
}

type jsonFailure struct {
	Line     int    `json:"line"`
	Step     int    `json:"step"`
	Request  int    `json:"request,omitempty"`
	Field    string `json:"field,omitempty"`
	Expected string `json:"expected,omitempty"`
	Seen     string `json:"seen,omitempty"`
	Message  string `json:"message"`
}

func (j JSON) write(line *jsonLine) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(line); err != nil {
		return err
	}
	_, err := io.WriteString(j.To, b.String())
	return err
}

// Test implements Reporter.
func (j JSON) Test(file string, r *Result) error {
	line := jsonLine{Event: "test", File: file, Test: r.Name, Result: "pass", Seconds: r.Took.Seconds(), Log: r.Log}
	for i := range r.Failures {
		f := &r.Failures[i]
		line.Result = "fail"
		failure := jsonFailure{Line: f.Line, Step: f.Step, Request: f.Request, Field: f.Field, Message: f.String()}
		if f.Field != "" {
			failure.Expected, failure.Seen = f.Expected, f.Seen
		}
		line.Failures = append(line.Failures, failure)
	}
	return j.write(&line)
}

// File implements Reporter.
func (j JSON) File(o *Outcome) error {
	tests, failed := len(o.Results), o.Failed()
	line := jsonLine{
		Event: "file", File: o.Name, Result: "pass", Seconds: o.Took.Seconds(), Tests: &tests, Failed: &failed,
	}
	if failed > 0 {
		line.Result = "fail"
	}
	return j.write(&line)
}

// The elements of JUnit's XML, as far as Jenkins, GitLab, Azure and GitHub's reporters read them.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string     `xml:"name,attr"`
		ClassName string     `xml:"classname,attr"`
		File      string     `xml:"file,attr"`
		Line      int        `xml:"line,attr,omitempty"`
		Time      string     `xml:"time,attr"`
		Failure   *junitText `xml:"failure"`
		Output    string     `xml:"system-out,omitempty"`
	}
	junitText struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes what came of files as the XML that CI systems read.
func WriteJUnit(w io.Writer, outcomes []*Outcome) error {
	all := junitSuites{}
	var took time.Duration
	for _, o := range outcomes {
		suite := suiteOf(o)
		took += o.Took
		all.Tests += suite.Tests
		all.Failures += suite.Failures
		all.Errors += suite.Errors
		all.Suites = append(all.Suites, suite)
	}
	all.Time = plainSeconds(took)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(&all); err != nil {
		return fmt.Errorf("write JUnit's XML: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func suiteOf(o *Outcome) junitSuite {
	suite := junitSuite{Name: o.Name, Time: plainSeconds(o.Took)}
	for _, r := range o.Results {
		c := junitCase{
			Name: r.Name, ClassName: o.Name, File: o.Name, Line: r.Line, Time: plainSeconds(r.Took),
			Output: strings.Join(r.Log, "\n"),
		}
		var lines []string
		for i := range r.Failures {
			f := &r.Failures[i]
			lines = append(lines, fmt.Sprintf("%s:%d: %s", o.Name, f.Line, f.String()))
		}
		if lines != nil {
			c.Failure = &junitText{Message: r.Failures[0].String(), Type: "expectation", Text: strings.Join(lines, "\n")}
			suite.Failures++
		}
		suite.Tests++
		suite.Cases = append(suite.Cases, c)
	}
	return suite
}

func plainSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
