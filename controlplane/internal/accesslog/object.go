package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// newJSON makes a format of lines that are JSON objects, with the names that the first lines
// of a log have. Points join the names of objects inside others.
func newJSON(log string, sample []string) (*format, error) {
	f := &format{name: jsonFormat, isOpen: true, read: readObject}
	known := map[string]int{} // columns by key
	for _, line := range sample {
		n, err := parseObject(line)
		if err != nil {
			continue
		}
		walk("", n, func(name string, value *policy.Node) {
			key := strings.ToLower(name)
			at, ok := known[key]
			if !ok {
				at = len(f.columns)
				known[key] = at
				f.columns = append(f.columns, column{name: name, key: key})
			}
			if _, isLine := cutRequestLine(value.Text, ""); isLine {
				f.columns[at].mayBeLine = true
			}
		})
	}
	if len(f.columns) == 0 {
		return nil, unreadable(log, sample, errNoObject.Error())
	}
	sent, hasSent := known["bytes_sent"]
	if _, ofEnvoy := known["bytes_received"]; ofEnvoy && hasSent { // nginx counts headers in what it calls bytes_sent
		f.columns[sent].key = bodyBytesSent
	}
	return f, nil
}

// bodyBytesSent is what nginx calls the bytes of an answer's body.
const bodyBytesSent = "body_bytes_sent"

// compileJSON makes a format of Envoy's json_format.
func compileJSON(said string) (*format, error) {
	n, err := policy.ParseJSON([]byte(said))
	if err != nil {
		return nil, errors.New("--format begins like a JSON object, but is not one")
	}
	f := &format{name: said, read: readObject}
	walk("", n, func(name string, value *policy.Node) {
		c := column{}
		switch found := envoyValue.FindString(value.Text); {
		case err != nil:
		case found == "" || found == "%%" || found != value.Text: // not a single value
			err = envoySyntax.checkLiteral(envoyValue.ReplaceAllString(value.Text, ""))
		default:
			c, err = operator(found)
		}
		c.name = name
		f.columns = append(f.columns, c)
	})
	return f, err
}

// walk calls a function with each value that is not an object.
func walk(prefix string, n *policy.Node, each func(name string, value *policy.Node)) {
	for _, field := range n.Fields {
		name := prefix + field.Name
		if field.Value.Kind == policy.Object {
			walk(name+".", field.Value, each)
		} else {
			each(name, field.Value)
		}
	}
}

// readObject reads a line.
func readObject(line string, wanted places, r *Request) error {
	n, err := parseObject(line)
	if err != nil {
		return err
	}
	for _, p := range wanted {
		value, times := lookup(n, p.name)
		if times > 1 {
			return fmt.Errorf("it has %s twice", p.name)
		}
		if times == 0 {
			continue
		}
		if err := p.setJSON(r, value); err != nil {
			return err
		}
	}
	return nil
}

// lookup returns the value of a name, in any case of letters, and how many there are.
func lookup(n *policy.Node, name string) (value *policy.Node, times int) {
	for _, field := range n.Fields {
		own, rest := field.Name, ""
		if len(own) < len(name) && name[len(own)] == '.' {
			rest = name[len(own)+1:]
		} else if len(own) != len(name) {
			continue
		}
		if !strings.EqualFold(own, name[:len(own)]) {
			continue
		}
		found, n := field.Value, 1
		if rest != "" {
			found, n = lookup(field.Value, rest)
		}
		if n > 0 {
			value = found
		}
		times += n
	}
	return value, times
}

// setJSON gives the field of a request a value, and a header each value of a list.
func (p *place) setJSON(r *Request, value *policy.Node) error {
	switch value.Kind {
	case policy.Null:
		return nil
	case policy.Object:
		return fmt.Errorf("%s is an object: say --map with the name inside it, as %s.NAME", p.name, p.name)
	case policy.List:
		if len(value.Items) > 1 && !strings.HasPrefix(p.field, headerPrefix) {
			return fmt.Errorf("%s is a list of %d", p.name, len(value.Items))
		}
		for _, item := range value.Items {
			if err := p.setJSON(r, item); err != nil {
				return err
			}
		}
		return nil
	default:
		return p.set(r, value.Text)
	}
}

var errNoObject = errors.New("it is not a JSON object")

// parseObject reads the object of a line, also of one that nginx wrote without escape=json.
func parseObject(line string) (*policy.Node, error) {
	n, err := policy.ParseJSON(line)
	if err != nil && strings.HasPrefix(line, "{") {
		n, err = policy.ParseJSON(mend(line))
	}
	if err != nil || n.Kind != policy.Object {
		return nil, errNoObject
	}
	return n, nil
}

// mend makes JSON of what nginx' log_format writes without escape=json. Its strings have \x22
// for a quotation mark, and bytes as they came. Without quotation marks stand -, nothing, an
// address, or several numbers, which become a text or null. Clients cannot end a string or
// begin a name: nginx escapes their quotation marks. Without an end of a string it is nil.
func mend(line string) (mended []byte) {
	for at := 0; at < len(line); {
		c := line[at]
		isEnd := strings.IndexByte(",}]", c) >= 0
		switch {
		case c == '"':
			n := (&text{escapes: true}).index(line[at+1:], `"`)
			if n < 0 {
				return nil
			}
			mended = policy.AppendString(mended, asUTF8(unescape(line[at+1:at+1+n])))
			at += n + 2
		case isEnd && bytes.HasSuffix(mended, []byte(":")):
			mended = append(mended, "null"...)
		case isEnd || strings.IndexByte("{[:", c) >= 0:
			mended = append(mended, c)
			at++
		case c == ' ' || c == '\t':
			at++
		default:
			n := bareLen(line[at:])
			mended = appendBare(mended, strings.TrimRight(line[at:at+n], " \t"))
			at += n
		}
	}
	return mended
}

// appendBare appends a value without quotation marks: as it is, or else as a text.
func appendBare(to []byte, value string) []byte {
	if _, err := policy.ParseJSON(value); err == nil {
		return append(to, value...)
	}
	return policy.AppendString(to, asUTF8(unescape(value)))
}

// bareLen is the length of the value without quotation marks that text begins with: it goes to
// the end of what it is in, or to the comma before the next name.
func bareLen(text string) int {
	for i := range len(text) {
		switch text[i] {
		case '}', ']':
			return i
		case ',':
			if strings.HasPrefix(strings.TrimLeft(text[i+1:], " \t"), `"`) {
				return i
			}
		}
	}
	return len(text)
}

// asUTF8 takes bytes that are not UTF-8 for Latin-1.
func asUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var out strings.Builder
	for text != "" {
		r, size := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && size == 1 {
			r = rune(text[0])
		}
		out.WriteRune(r)
		text = text[size:]
	}
	return out.String()
}
