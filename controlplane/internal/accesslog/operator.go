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
		i := strings.IndexByte(format, '%')
		switch {
		case i < 0:
			return literal + format, "", "", nil
		case strings.HasPrefix(format[i:], "%%"):
			literal, format = literal+format[:i+1], format[i+2:]
			continue
		}
		literal, format = literal+format[:i], format[i+1:]
		break
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
	end := strings.IndexFunc(rest, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
	if end < 0 {
		end = len(rest)
	}
	if end == 0 {
		return "", "", "", errors.New(`a "$" has no name behind it`)
	}
	return literal, rest[:end], rest[end:], nil
}

// operator returns what the value of a command operator of Envoy is for.
func operator(name string) ([]target, error) {
	command, argument, most, err := cutArgument(name)
	if err != nil {
		return nil, err
	}
	targets, err := commandTargets(command, argument)
	for i := range targets {
		targets[i].most = most
	}
	return targets, err
}

// cutArgument cuts COMMAND(argument):most, of which Envoy demands the command alone.
func cutArgument(name string) (command, argument string, most int, err error) {
	length := ""
	if i := strings.IndexByte(name, '('); i >= 0 {
		end := strings.LastIndexByte(name, ')')
		if end < i {
			return "", "", 0, fmt.Errorf("%%%s%% has no closing bracket", name)
		}
		command, argument, length = name[:i], name[i+1:end], strings.TrimPrefix(name[end+1:], ":")
	} else {
		command, length, _ = strings.Cut(name, ":")
	}
	if length != "" {
		if most, err = strconv.Atoi(length); err != nil || most <= 0 {
			return "", "", 0, fmt.Errorf("%%%s%%: %q is no length", name, length)
		}
	}
	return command, argument, most, nil
}

func commandTargets(command, argument string) ([]target, error) {
	switch command {
	case "START_TIME":
		read, err := timeOf(command, argument)
		return []target{{kind: kindTime, field: FieldTime, time: read}}, err
	case "EMIT_TIME":
		read, err := timeOf(command, argument)
		return []target{{kind: kindEnd, field: FieldTime, time: read}}, err
	case "DURATION":
		return []target{{kind: kindDuration, unit: float64(time.Millisecond)}}, nil
	case "REQ", "REQUEST_HEADER":
		if field := requestHeader(argument); field != "" {
			return []target{targetOf(field)}, nil
		}
	case "PATH":
		path := targetOf(FieldPath)
		path.bare = strings.HasPrefix(argument, "NQ")
		return []target{path}, nil
	case "DOWNSTREAM_REMOTE_ADDRESS", "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT":
		return []target{targetOf(FieldClientIP)}, nil
	case "RESPONSE_CODE":
		return []target{targetOf(FieldStatus)}, nil
	case "ROUTE_NAME":
		return []target{targetOf(FieldRoute)}, nil
	case "DYNAMIC_METADATA":
		if rest, ok := strings.CutPrefix(argument, jwtNamespace+":"); ok {
			return []target{targetOf(jwtPrefix + rest)}, nil
		}
	}
	return nil, nil
}

// requestHeader names the field of %REQ(argument)%. X?Y is Y where X is absent, so it
// has a field only where both have the same.
func requestHeader(argument string) string {
	first, second, two := strings.Cut(strings.ToLower(argument), "?")
	pseudo := map[string]string{":method": FieldMethod, ":authority": FieldHost, ":path": FieldPath}
	if field, ok := pseudo[first]; ok { // each request has it
		return field
	}
	if !two {
		return HeaderField(first)
	}
	if strings.HasPrefix(first, "x-envoy-original-") || first == "x-forwarded-host" {
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

// timeOf returns what reads %command(format)%.
func timeOf(command, format string) (func([]byte) (int64, bool), error) {
	if format == "" {
		return rfc3339, nil
	}
	if strings.Trim(format, "%sf.0123456789") == "" && strings.HasPrefix(format, "%s") { // %s, %s.%3f
		return epoch, nil
	}
	layout, rest := "", format
	for rest != "" {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			layout += rest
			break
		}
		layout, rest = layout+rest[:i], rest[i:]
		n := 2
		if len(rest) > 2 && rest[1] >= '0' && rest[1] <= '9' {
			n = 3
		}
		part, ok := layouts[rest[:min(n, len(rest))]]
		if !ok {
			return nil, fmt.Errorf("%%%s(%s)%%: %s is not read: have the time logged with %%Y-%%m-%%dT%%H:%%M:%%S.%%3f%%z",
				command, format, rest[:min(n, len(rest))])
		}
		if strings.HasSuffix(layout, ".") || !strings.HasSuffix(part, "000") {
			layout += part
		} else { // package time reads fractions behind a point alone
			return nil, fmt.Errorf("%%%s(%s)%%: a fraction is read behind a point alone", command, format)
		}
		rest = rest[n:]
	}
	return byLayout(layout), nil
}

// variable returns what the value of a variable of nginx is for.
func variable(name string) []target {
	end := func(read func([]byte) (int64, bool)) []target {
		return []target{{kind: kindEnd, field: FieldTime, time: read}}
	}
	switch name {
	case "time_local":
		return end(local)
	case "time_iso8601":
		return end(rfc3339)
	case "msec":
		return end(epoch)
	case "request_time":
		return []target{{kind: kindDuration, unit: float64(time.Second)}}
	case "request":
		return []target{{kind: kindLine}}
	case "request_method":
		return []target{targetOf(FieldMethod)}
	case "request_uri":
		return []target{targetOf(FieldPath)}
	case "remote_addr":
		return []target{targetOf(FieldClientIP)}
	case "status":
		return []target{targetOf(FieldStatus)}
	case "host", "http_host":
		return []target{targetOf(FieldHost)}
	}
	if header, ok := strings.CutPrefix(name, "http_"); ok {
		return []target{targetOf(HeaderField(strings.ReplaceAll(header, "_", "-")))}
	}
	return nil
}
