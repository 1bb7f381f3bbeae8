package policy

import (
	"errors"
	"strconv"
	"strings"
	"unicode"
)

// MaxNameBytes is the longest a domain, rule, counter or window name may be.
const MaxNameBytes = 128

// text reads a string. Control characters are refused everywhere: they break
// lines of logs and headers, and nobody types one on purpose.
func (r *reader) text(v value) (string, bool) {
	if v.node.Kind != String {
		r.mismatch(v)
		return "", false
	}
	s := v.node.Text
	if s == "" {
		r.fail(v, "must not be empty")
		return "", false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			r.fail(v, "must not hold the control character "+strconv.QuoteRuneToASCII(c))
			return "", false
		}
	}
	return s, true
}

// name reads a text that names something in metrics, headers and messages.
func (r *reader) name(v value) (string, bool) {
	s, ok := r.text(v)
	switch {
	case !ok:
		return "", false
	case len(s) > MaxNameBytes:
		r.fail(v, "must be at most "+itoa(MaxNameBytes)+" bytes, not "+itoa(int64(len(s))))
	case strings.TrimSpace(s) != s:
		r.fail(v, "must not start or end with a space: "+quote(s))
	default:
		return s, true
	}
	return "", false
}

// word reads one of the words that the shape has; "" of what it has refused.
func (r *reader) word(v value) string {
	s := v.node.Text
	switch {
	case v.node.Kind != String:
		r.mismatch(v)
	case v.shape.accepts(s):
		return s
	case isNotBuiltWord(v.at.String(), s):
		r.fail(v, quote(s)+" is not built yet: must be "+v.shape.String())
	default:
		message := "must be " + v.shape.String() + ", not " + quote(s)
		if near := likely(s, v.shape.words); near != "" && !v.shape.isOneWord() {
			message += ": did you mean " + quote(near) + "?"
		}
		r.fail(v, message)
	}
	return ""
}

// integer reads a number within the bounds of the shape; 0 of what it has refused.
func (r *reader) integer(v value) int64 {
	if v.node.Kind != Number {
		r.mismatch(v)
		return 0
	}
	n, fault := integerOf(v.node.Text)
	if fault != nil || n < v.shape.min || n > v.shape.max {
		r.mismatch(v)
		return 0
	}
	return n
}

func (r *reader) boolean(v value) bool {
	if v.node.Kind != Bool {
		r.mismatch(v)
		return false
	}
	return v.node.Text == "true"
}

func (r *reader) duration(v value) (int64, bool) {
	if v.node.Kind != String {
		r.mismatch(v)
		return 0, false
	}
	ns, err := ParseDuration(v.node.Text)
	if err != nil {
		r.fail(v, err.Error())
		return 0, false
	}
	return ns, true
}

var (
	errNoInteger = errors.New("no whole number")
	errTooLarge  = errors.New("number too large")
)

// integerOf is the value of a number's text if that is exactly an integer.
// 10, 10.0 and 1e1 are the same: a Struct in Envoy's configuration turns every
// number into a double, and its JSON may come back in any of these forms.
func integerOf(text string) (int64, error) {
	if !isNumber(text) {
		return 0, errNoInteger
	}
	digits, negative := strings.CutPrefix(text, "-")
	exponent := 0
	if at := strings.IndexAny(digits, "eE"); at >= 0 {
		exponent = exponentOf(digits[at+1:])
		digits = digits[:at]
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	fraction = strings.TrimRight(fraction, "0")
	exponent -= len(fraction)
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return 0, nil
	}
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed)
	if exponent < 0 {
		return 0, errNoInteger
	}
	const most = 18 // digits that surely fit an int64
	if len(trimmed)+exponent > most {
		return 0, errTooLarge
	}
	n, err := strconv.ParseInt(trimmed+strings.Repeat("0", exponent), 10, 64)
	if err != nil {
		return 0, errNoInteger
	}
	if negative {
		n = -n
	}
	return n, nil
}

// exponentOf saturates: the text may have a million digits.
func exponentOf(text string) int {
	const most = 1 << 28
	digits := strings.TrimLeft(text, "+-")
	n := 0
	for i := 0; i < len(digits) && n < most; i++ {
		n = n*10 + int(digits[i]-'0')
	}
	if strings.HasPrefix(text, "-") {
		return -n
	}
	return n
}

// isNumber reports whether s has the syntax of a JSON number.
func isNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	whole, rest := cutDigits(s)
	if whole == "" || len(whole) > 1 && whole[0] == '0' {
		return false
	}
	if strings.HasPrefix(rest, ".") {
		var fraction string
		if fraction, rest = cutDigits(rest[1:]); fraction == "" {
			return false
		}
	}
	if rest != "" && rest[0]|0x20 == 'e' {
		rest = rest[1:]
		if rest != "" && (rest[0] == '+' || rest[0] == '-') {
			rest = rest[1:]
		}
		var exponent string
		if exponent, rest = cutDigits(rest); exponent == "" {
			return false
		}
	}
	return rest == ""
}

func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}
