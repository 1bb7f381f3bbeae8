package accesslog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Error is an error about a log, with what to do about it.
type Error struct{ Text, Hint string }

func (e *Error) Error() string { return e.Text }

// unreadable is the error of a log whose lines cannot be read. The first line stands for all;
// why is empty if no format fits.
func unreadable(log string, lines []string, why string) error {
	if len(lines) == 0 {
		return &Error{Text: log + " has no lines", Hint: "give a log that has requests"}
	}
	line := clip(lines[0])
	switch {
	case line == "[" || strings.HasPrefix(line, "[{"):
		return &Error{
			Text: log + " is a JSON array: a log has one object a line",
			Hint: "jq -c '.[]' " + log + " writes each object on a line of its own",
		}
	case why == "":
		return &Error{
			Text: fmt.Sprintf("%s has lines of no known format, such as %q", log, line),
			Hint: "say --format with the format itself, as Envoy's text_format_source or nginx' log_format has it",
		}
	}
	return &Error{
		Text: fmt.Sprintf("no line of %s can be read, such as %q: %s", log, line, why),
		Hint: "--format has to say all that a line has, and times need a zone; --map says what a field is called",
	}
}

// lacking is the error of a log without a field that is needed. The log has the names.
func lacking(log, field string, names []string) error {
	e := &Error{Text: fmt.Sprintf("%s does not have the field %s, which is needed", log, field)}
	if field == FieldQuery {
		field = FieldPath
	}
	operator, variable := howToLog(field)
	if operator != "" {
		e.Hint = "have it logged, by Envoy as %" + operator + "%"
	}
	if variable != "" {
		e.Hint += ", by nginx as $" + variable
	}
	if e.Hint != "" {
		e.Hint += "; "
	}
	e.Hint += "if the log has it under another name, say --map " + field + "=NAME"
	if len(names) > 0 {
		e.Hint += " with one of " + list(names)
	}
	return e
}

// nothingMapped is the error of a field that --map reads from a name where no line has a value.
func nothingMapped(field, name string, names []string) error {
	slices.Sort(names)
	names = slices.Compact(names)
	e := &Error{Text: fmt.Sprintf("--map %s=%s: no line has a value of %q", field, name, name)}
	if len(names) > 0 {
		e.Hint = "lines have " + list(names)
	}
	return e
}

// behindBalancer is the error of a log that has a load balancer's addresses for its clients.
func behindBalancer(log, name, address, forwarded string) error {
	return &Error{
		Text: fmt.Sprintf("%s: client_ip, which is read from %s, is the private address %s, while x-forwarded-for is %q",
			log, name, address, clip(forwarded)),
		Hint: "--map client_ip=x-forwarded-for takes the last address there that is not private, --map client_ip=" + name +
			" what you have",
	}
}

// CheckUnknown returns an error if more than a share of the lines were left out.
func (s *Stats) CheckUnknown(most float64) error {
	switch {
	case float64(s.Unknown) > most*float64(s.Lines):
		return &Error{
			Text: fmt.Sprintf("%d of the first %d lines are of another format; line %d of %s is %q: %s",
				s.Unknown, s.Lines, s.Example.Number, s.Example.Log, s.Example.Text, s.Example.Why),
			Hint: "give one format's logs at a time, with --format; what they lack has to be logged; " +
				"--unknown-at-most allows more of them",
		}
	case 2*s.Refused > s.Lines:
		return &Error{
			Text: fmt.Sprintf("%d of %d lines have a path that Envoy answers 400, such as %q", s.Refused, s.Lines, s.BadPath),
			Hint: "if another field has the path, say --map path=NAME",
		}
	}
	return nil
}

// CheckOrder returns an error if more than a share of the requests count later than they came.
func (s *Stats) CheckOrder(most float64) error {
	if float64(s.Late) <= most*float64(s.Requests) {
		return nil
	}
	return &Error{
		Text: fmt.Sprintf("%d of the first %d requests are out of order by more time than lines are sorted",
			s.Late, s.Requests),
		Hint: "say by how much time lines may be out of order, as --sort 10m; if the newest lines come first, " +
			"reverse the log, as with tac",
	}
}

// list shortens a list of names for a message.
func list(names []string) string {
	const most = 40
	if len(names) > most {
		names = append(names[:most:most], "…")
	}
	return strings.Join(names, ", ")
}

// clip shortens a text for a message.
func clip(text string) string { return printable.Cut(text, 200) }
