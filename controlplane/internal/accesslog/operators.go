package accesslog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// cutOperator cuts a format of Envoy before its first %OPERATOR%; %% is a sign.
func cutOperator(format string) (literal, name, rest string, err error) {
	for {
		before, after, ok := strings.Cut(format, "%")
		if !ok {
			return literal + format, "", "", nil
		}
		if literal, format = literal+before, after; !strings.HasPrefix(after, "%") {
			break
		}
		literal, format = literal+"%", after[1:]
	}
	depth := 0
	for i, c := range format {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '%' && depth <= 0:
			return literal, format[:i], format[i+1:], nil
		}
	}
	return "", "", "", errors.New(`a "%" has no second one: write %% for the sign itself`)
}

// cutVariable cuts a format of nginx before its first $variable or ${variable}.
func cutVariable(format string) (literal, name, rest string, err error) {
	literal, rest, ok := strings.Cut(format, "$")
	if !ok {
		return literal, "", "", nil
	}
	if inner, braced := strings.CutPrefix(rest, "{"); braced {
		if name, rest, ok = strings.Cut(inner, "}"); !ok || name == "" {
			return "", "", "", errors.New(`"${" has no "}"`)
		}
		return literal, name, rest, nil
	}
	after := strings.TrimLeft(rest, "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	if name = rest[:len(rest)-len(after)]; name == "" {
		return "", "", "", errors.New(`a "$" has no name behind it`)
	}
	return literal, name, after, nil
}

// operatorMeanings returns what the value of COMMAND(argument):most is for, of which
// Envoy demands the command alone. Envoy appends to X-Forwarded-For, so its last address
// is the client's where the log has no other.
func operatorMeanings(name string) ([]meaning, error) {
	t, err := operatorMeaning(name)
	switch {
	case t.field == "" || err != nil:
		return nil, err
	case t.field == HeaderField("x-forwarded-for"):
		return []meaning{t, {field: FieldClientIP, most: t.most, spare: true}}, nil
	}
	return []meaning{t}, nil
}

func operatorMeaning(name string) (t meaning, err error) {
	var command, argument, length string
	if i := strings.IndexByte(name, '('); i >= 0 {
		end := strings.LastIndexByte(name, ')')
		if end < i {
			return t, fmt.Errorf("%%%s%% has no closing bracket", name)
		}
		command, argument, length = name[:i], name[i+1:end], strings.TrimPrefix(name[end+1:], ":")
	} else {
		command, length, _ = strings.Cut(name, ":")
	}
	switch command {
	case "START_TIME", "EMIT_TIME":
		t = meaning{field: FieldTime, end: command == "EMIT_TIME"}
		t.time, t.layout, err = timeOf(name, argument)
	case "DURATION":
		t = meaning{field: fieldTook, unit: time.Millisecond}
	case "REQ", "REQUEST_HEADER":
		t = meaningOf(requestHeader(argument))
	case "PATH":
		t = meaning{field: FieldPath, bare: strings.HasPrefix(argument, "NQ")}
	case "DYNAMIC_METADATA":
		if rest, ok := strings.CutPrefix(argument, jwtNamespace+":"); ok {
			t = meaningOf(jwtPrefix + rest)
		}
	default:
		for field, operator := range operators {
			if operator == strings.TrimSuffix(command, "_WITHOUT_PORT") {
				t = meaningOf(field)
			}
		}
	}
	if length != "" && err == nil {
		if t.most, err = strconv.Atoi(length); err != nil || t.most <= 0 {
			return t, fmt.Errorf("%%%s%%: %q is no length", name, length)
		}
	}
	return t, err
}

// requestHeader names the field of %REQ(argument)%. X?Y is Y where X is absent, so it
// has a field only where both have the same.
func requestHeader(argument string) string {
	first, second, two := strings.Cut(strings.ToLower(argument), "?")
	pseudo := map[string]string{":method": FieldMethod, ":authority": FieldHost, ":path": FieldPath}
	switch {
	case pseudo[first] != "": // each request has it
		return pseudo[first]
	case !two:
		return HeaderField(first)
	case strings.HasPrefix(first, "x-envoy-original-"), first == "x-forwarded-host":
		return pseudo[second] // as the client sent it
	}
	return ""
}

// The formats of times that are read, as layouts of package time.
var layouts = map[string]string{
	"%Y": "2006", "%m": "01", "%d": "02", "%H": "15", "%M": "04", "%S": "05", "%z": "-0700", "%b": "Jan", "%e": "_2",
	"%F": "2006-01-02", "%T": "15:04:05", "%y": "06", "%Z": "MST",
	"%f": "000000000", "%3f": "000", "%6f": "000000", "%9f": "000000000",
}

// timeOf returns what reads the times of an operator with such a format, and their layout.
func timeOf(name, format string) (read func(string) (int64, bool), layout string, err error) {
	if format == "" {
		return anyTime, "", nil
	}
	if strings.Trim(format, "%sf.0123456789") == "" && strings.HasPrefix(format, "%s") { // %s, %s.%3f
		return epoch, "", nil
	}
	for rest := format; rest != ""; {
		before, _, _ := strings.Cut(rest, "%")
		layout, rest = layout+before, rest[len(before):]
		if rest == "" {
			break
		}
		n := min(2, len(rest))
		if len(rest) > 2 && rest[1] >= '0' && rest[1] <= '9' {
			n = 3
		}
		part, ok := layouts[rest[:n]]
		if !ok {
			return nil, "", fmt.Errorf("%%%s%%: %s is not read: have the time logged with %%Y-%%m-%%dT%%H:%%M:%%S.%%3f%%z", name, rest[:n])
		}
		if strings.HasSuffix(part, "000") && !strings.HasSuffix(layout, ".") { // package time reads fractions behind a point alone
			return nil, "", fmt.Errorf("%%%s%%: a fraction is read behind a point alone", name)
		}
		layout, rest = layout+part, rest[n:]
	}
	return byLayout(layout), layout, nil
}
