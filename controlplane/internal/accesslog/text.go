package accesslog

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// text is a format of lines of text: literals and values in turn.
//
// A line is read from the left. Each value ends at the first place that has the literal behind it, and
// the last value ends with the line. A value that holds the literal before it is an error. So a client
// that writes literals into a value cannot shift the values behind it. For example, the format is A|B;C:
//
//   - The line is 1|2|b;c, because the client wrote 1|2 for A. A ends too early, as 1. So B begins too
//     early, is 2|b, and holds the | before it.
//   - The line is 1|2;3|b;c, because the client wrote 1|2;3. Now B ends too early as well, as 2. But the
//     last value has to go on to the end of the line: C is 3|b;c, and holds the ; before it.
//
// Both lines are left out. So are the lines of a format that lacks one of their values.
type text struct {
	columns  []column
	literals []string // before each column, and behind the last
	escapes  bool     // \ stands before a quotation mark of a value, and values have \xHH

	room []string // for the values that cut returns: those of the line that was cut last
}

// syntax is how a format spells values.
type syntax struct {
	value  *regexp.Regexp
	sign   string // begins a value, and is not a literal
	column func(value string) (column, error)
}

// Envoy's syntax is %COMMAND(argument):most%, where %% is a sign. That of nginx is
// $variable or ${variable}.
var (
	envoyValue  = regexp.MustCompile(`%(?:%|(\w+)(?:\((.*?)\))?(?::(\d+))?%)`)
	envoySyntax = syntax{envoyValue, "%", operator}
	nginxSyntax = syntax{regexp.MustCompile(`\$(?:\{([^{}]+)\}|(\w+))`), "$", variable}
)

func (s syntax) checkLiteral(literal string) error {
	if strings.Contains(literal, s.sign) {
		return fmt.Errorf("a %q begins no value: a value is %%COMMAND%%, $name or ${name}, and %%%% is the sign itself",
			s.sign)
	}
	return nil
}

// newText makes a format of its text, as Envoy or nginx has it.
func newText(name, said string) (*format, error) {
	said = strings.TrimSuffix(strings.TrimSuffix(said, "\n"), `\n`)
	isNginx := !strings.Contains(said, "%") && strings.Contains(said, "$")
	syntax := envoySyntax
	if isNginx {
		syntax = nginxSyntax
	}
	t, err := compile(said, syntax)
	if err != nil {
		return nil, err
	}
	t.escapes = isNginx
	return &format{name: name, columns: t.columns, read: t.read}, nil
}

// compile cuts a format into literals and columns.
func compile(format string, s syntax) (*text, error) {
	t := &text{literals: []string{""}}
	for rest := format; rest != ""; {
		found := s.value.FindStringIndex(rest)
		if found == nil {
			found = []int{len(rest), len(rest)}
		}
		literal, value := rest[:found[0]], rest[found[0]:found[1]]
		rest = rest[found[1]:]
		if err := s.checkLiteral(literal); err != nil {
			return nil, err
		}
		if value == "%%" {
			literal += "%"
		}
		last := &t.literals[len(t.columns)]
		*last += literal
		if value == "" || value == "%%" {
			continue
		}
		c, err := s.column(value)
		if err != nil {
			return nil, err
		}
		if n := len(t.columns); n > 0 && *last == "" { // nothing separates the two, so they are one without a meaning
			t.columns[n-1] = column{name: t.columns[n-1].name + c.name}
			continue
		}
		t.columns = append(t.columns, c)
		t.literals = append(t.literals, "")
	}
	if len(t.columns) == 0 {
		return nil, errors.New("it has neither %OPERATORS% of Envoy nor $variables of nginx")
	}
	t.room = make([]string, len(t.columns))
	return t, nil
}

// variable returns the column of nginx' $variable or ${variable}.
func variable(value string) (column, error) {
	name := strings.Trim(value, "${}")
	c := column{name: name, key: strings.ToLower(name), mayBeLine: true}
	switch c.key {
	case "time_local":
		c.width = len(localLayout)
	case w3cTime:
		c.width, c.time = len(time.DateTime), dateTime
	}
	return c, nil
}

// operator returns the column of Envoy's %COMMAND(argument):most%. What Envoy logs of a
// header X?Y is Y where X is absent.
func operator(value string) (column, error) {
	parts := envoyValue.FindStringSubmatch(value)
	command, argument := parts[1], parts[2]
	c := column{name: strings.Trim(value, "%")}
	switch command {
	case "START_TIME", "EMIT_TIME":
		c.key = strings.ToLower(command)
		if err := c.readTime(argument); err != nil {
			return c, err
		}
	case "REQ", "REQUEST_HEADER":
		c.key = headerKey(strings.ToLower(argument))
	case "PATH":
		c.key = "path"
		if strings.HasPrefix(argument, "NQ") {
			c.key = "path(nq)"
		}
	case "DYNAMIC_METADATA":
		if claim, ok := strings.CutPrefix(argument, JWTNamespace+":"); ok {
			c.key = jwtPrefix + claim
		}
	case "DOWNSTREAM_REMOTE_ADDRESS", "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "DURATION", "RESPONSE_CODE",
		"ROUTE_NAME", "BYTES_RECEIVED":
		c.key = strings.ToLower(command)
	case "BYTES_SENT":
		c.key = bodyBytesSent
	}
	if most := parts[3]; most != "" {
		n, err := strconv.Atoi(most)
		if err != nil || n <= 0 {
			return c, fmt.Errorf("%%%s%%: %q is not a length", c.name, most)
		}
		c.most = n
	}
	return c, nil
}

// headerKey returns the key of %REQ(argument)%. Of X?Y it has one only where both are the
// same field of a request.
func headerKey(argument string) string {
	first, second, isEither := strings.Cut(argument, "?")
	isPseudo := strings.HasPrefix(first, ":") // each request has it
	switch {
	case isPseudo || !isEither:
		return "req(" + first + ")"
	case strings.HasPrefix(second, ":") &&
		(strings.HasPrefix(first, "x-envoy-original-") || first == "x-forwarded-host"):
		return "req(" + second + ")" // as the client sent it
	}
	return ""
}

// directives are what Envoy's formats of times are made of, and how package time writes them.
var directives = map[string]string{
	"%Y": "2006", "%m": "01", "%d": "02", "%H": "15", "%M": "04", "%S": "05", "%z": "-0700", "%b": "Jan", "%e": "_2",
	"%F": "2006-01-02", "%T": "15:04:05", "%y": "06", "%Z": "MST",
	"%f": "000000000", "%3f": "000", "%6f": "000000", "%9f": "000000000",
}

var (
	directive    = regexp.MustCompile(`%\d?.?`)
	bareFraction = regexp.MustCompile(`(?:^|[^.])%\d?f`)
)

// readTime has the column read times of a format.
func (c *column) readTime(format string) error {
	if format == "" {
		return nil
	}
	if strings.HasPrefix(format, "%s") && strings.Trim(format, "%sf.0123456789") == "" { // %s, %s.%3f
		c.time = epoch
		return nil
	}
	layout := directive.ReplaceAllStringFunc(format, func(part string) string { return directives[part] })
	for _, part := range directive.FindAllString(format, -1) {
		if directives[part] == "" {
			return fmt.Errorf("%%%s%%: %s is not read: have the time logged with %%Y-%%m-%%dT%%H:%%M:%%S.%%3f%%z",
				c.name, part)
		}
	}
	if bareFraction.MatchString(format) { // package time reads fractions behind a point alone
		return fmt.Errorf("%%%s%%: a fraction must stand behind a point", c.name)
	}
	c.time, c.width = byLayout(layout), len(layout)
	return nil
}

// read reads a line.
func (t *text) read(line string, wanted places, r *Request) error {
	values, err := t.cut(line)
	if err != nil {
		return err
	}
	for _, p := range wanted {
		value := values[p.at]
		if t.escapes {
			value = unescape(value)
		}
		if err := p.set(r, value); err != nil {
			return err
		}
	}
	return nil
}

// cut cuts a line into its values. They are good until the next line is cut.
func (t *text) cut(line string) (values []string, err error) {
	if !strings.HasPrefix(line, t.literals[0]) {
		return nil, fmt.Errorf("it does not begin with %q", t.literals[0])
	}
	at := len(t.literals[0])
	for i := range t.columns {
		c := &t.columns[i]
		before, behind := t.literals[i], t.literals[i+1]
		length := c.width
		switch {
		case length > 0:
		case i == len(t.columns)-1:
			length = len(line) - len(behind) - at
		default:
			length = t.index(line[at:], behind)
		}
		end := at + length
		if length < 0 || end > len(line) || !strings.HasPrefix(line[end:], behind) {
			return nil, fmt.Errorf("it has no %q behind %s", behind, c.name)
		}
		if c.width == 0 && before != "" && t.index(line[at-len(before)+1:end], before) >= 0 {
			return nil, hasSeparator(c.name, line[at:end], before)
		}
		t.room[i] = line[at:end]
		at = end + len(behind)
	}
	if at < len(line) { // a last value of one width ends before the line
		return nil, fmt.Errorf("it goes on behind %s", t.columns[len(t.columns)-1].name)
	}
	return t.room, nil
}

// hasSeparator is the error of a line that could be read in another way, too.
func hasSeparator(column, value, literal string) error {
	return fmt.Errorf("%s would be %q, with the format's separator %q in it: a client wrote it, or the format lacks "+
		"a value", column, clip(value), literal)
}

// index returns where a literal begins in a part of a line, -1 = nowhere. A quotation mark that is
// escaped is of a value.
func (t *text) index(part, literal string) int {
	if !t.escapes || !strings.HasPrefix(literal, `"`) {
		return strings.Index(part, literal)
	}
	for at := 0; at < len(part); at++ {
		if part[at] == '\\' {
			at++
		} else if strings.HasPrefix(part[at:], literal) {
			return at
		}
	}
	return -1
}

// unescape undoes \xHH, \", \\ and the letters of C. Any other backslash stays.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for text != "" {
		c, isWhole, tail, err := strconv.UnquoteChar(text, '"')
		switch {
		case err != nil:
			tail = text[1:]
			out.WriteByte(text[0])
		case isWhole:
			out.WriteString(text[:len(text)-len(tail)])
		default:
			out.WriteByte(byte(c))
		}
		text = tail
	}
	return out.String()
}
