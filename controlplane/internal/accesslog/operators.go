package accesslog

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// values find what stands for a value in a format: %COMMAND(argument):most% of Envoy, where
// %% is a sign, and $variable or ${variable} of nginx.
var (
	operatorValue = regexp.MustCompile(`%(?:%|(\w+)(?:\((.*?)\))?(?::(\d+))?%)`)
	variableValue = regexp.MustCompile(`\$(?:\{([^{}]+)\}|(\w+))`)
)

// cutValue cuts a format before its first value. There is none where the name is empty.
func cutValue(format string, values *regexp.Regexp, sign string) (literal, name, rest string, err error) {
	for rest = format; name == "" && rest != ""; {
		at := values.FindStringIndex(rest)
		if at == nil {
			at = []int{len(rest), len(rest)}
		}
		before, found := rest[:at[0]], rest[at[0]:at[1]]
		if strings.Contains(before, sign) {
			return "", "", "", fmt.Errorf("a %q begins no value: a value is %%COMMAND%%, $name or ${name}, and %%%% is the sign itself", sign)
		}
		literal, rest = literal+before, rest[at[1]:]
		if found == "%%" {
			literal += "%"
		} else {
			name = strings.Trim(found, "%${}")
		}
	}
	return literal, name, rest, nil
}

// operatorMeanings returns what the value of COMMAND(argument):most is for, of which
// Envoy demands the command alone. Envoy appends to X-Forwarded-For, so its last address
// is the client's where the log has no other.
func operatorMeanings(name string) ([]meaning, error) {
	parts := operatorValue.FindStringSubmatch("%" + name + "%")
	command, argument, length := parts[1], parts[2], parts[3]
	var t meaning
	var err error
	switch command {
	case "START_TIME", "EMIT_TIME":
		t = meaning{field: FieldTime, end: command == "EMIT_TIME"}
		t.time, t.layout, err = timeOf(name, argument)
	case "DURATION":
		t = meaning{field: FieldTook, unit: time.Millisecond}
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
			return nil, fmt.Errorf("%%%s%%: %q is no length", name, length)
		}
	}
	switch {
	case t.field == "" || err != nil:
		return nil, err
	case t.field == HeaderField("x-forwarded-for"):
		return []meaning{t, {field: FieldClientIP, most: t.most, spare: true}}, nil
	}
	return []meaning{t}, nil
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
	layout = directive.ReplaceAllStringFunc(format, func(part string) string {
		if layouts[part] == "" {
			err = fmt.Errorf("%%%s%%: %s is not read: have the time logged with %%Y-%%m-%%dT%%H:%%M:%%S.%%3f%%z", name, part)
		}
		return layouts[part]
	})
	if bareFraction.MatchString(format) { // package time reads fractions behind a point alone
		err = fmt.Errorf("%%%s%%: a fraction is read behind a point alone", name)
	}
	return byLayout(layout), layout, err
}

var (
	directive    = regexp.MustCompile(`%\d?.?`)
	bareFraction = regexp.MustCompile(`(?:^|[^.])%\d?f`)
)
