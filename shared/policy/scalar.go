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
	switch {
	case v.Kind != String:
		r.fail(v, WrongValue)
	case v.Text == "":
		r.fail(v, EmptyValue)
	case strings.ContainsFunc(v.Text, unicode.IsControl):
		r.fail(v, ControlChar)
	default:
		return v.Text, true
	}
	return "", false
}

// name reads a text that names something in metrics, headers and messages.
func (r *reader) name(v value) string {
	s, ok := r.text(v)
	switch {
	case !ok || !r.fits(v, MaxNameBytes):
		return ""
	case strings.TrimSpace(s) != s:
		r.fail(v, OuterSpace)
		return ""
	}
	return s
}

// shortText reads a text that names something of a request.
func (r *reader) shortText(v value) string { return r.textOf(v, MaxNameBytes) }

// textOf reads a text of at most so many bytes.
func (r *reader) textOf(v value, maxBytes int) string {
	s, ok := r.text(v)
	if ok {
		r.fits(v, maxBytes)
	}
	return s
}

// fits reports whether a text is short enough.
func (r *reader) fits(v value, maxBytes int) bool {
	if len(v.Text) > maxBytes {
		r.fail(v, TooLong, itoa(int64(maxBytes)))
		return false
	}
	return true
}

// word reads one of the words that the shape has; it returns "" if it has reported a
// problem.
func (r *reader) word(v value) string {
	if v.Kind == String {
		for _, w := range v.shape.Words {
			if w == v.Text {
				return w
			}
		}
	}
	r.fail(v, WrongValue)
	return ""
}

// integer reads a number within the bounds of the shape; it returns 0 if it has reported a
// problem.
func (r *reader) integer(v value) int64 {
	n, ok := integerOf(v.Text)
	if v.Kind != Number || !ok || n < v.shape.Min || n > v.shape.Max {
		r.fail(v, WrongValue)
		return 0
	}
	return n
}

func (r *reader) boolean(v value) bool {
	if v.Kind != Bool {
		r.fail(v, WrongValue)
	}
	return v.Kind == Bool && v.Text == "true"
}

// duration reads nanoseconds.
func (r *reader) duration(v value) (int64, bool) { return parsed(r, v, ParseDuration) }

// durationIn reads nanoseconds from low to high.
func (r *reader) durationIn(v value, low, high int64, code Code) int64 {
	ns, ok := r.duration(v)
	if ok && (ns < low || ns > high) {
		r.fail(v, code, itoa(ns), itoa(low), itoa(high))
	}
	return ns
}

func parsed[T any](r *reader, v value, parse func(string) (T, error)) (out T, ok bool) {
	if v.Kind != String {
		r.fail(v, WrongValue)
		return out, false
	}
	out, err := parse(v.Text)
	switch {
	case errors.Is(err, ErrLongDuration):
		r.fail(v, LongDuration)
	case err != nil:
		r.fail(v, BadDuration)
	}
	return out, err == nil
}

// percent reads 25 or "25%".
func (r *reader) percent(v value) uint8 {
	text, isText := strings.CutSuffix(v.Text, "%")
	if v.Kind == Number && !isText || v.Kind == String && isText {
		if n, ok := integerOf(text); ok && n >= 1 && n <= 100 {
			return uint8(n)
		}
	}
	r.fail(v, WrongValue)
	return 0
}

// isList reports whether v is a list.
func (r *reader) isList(v value) bool {
	if v.Kind != List {
		r.fail(v, WrongValue)
	}
	return v.Kind == List
}

// items reports whether v is a list of as many items as its shape says. A shape refuses an
// empty list that would match every request, or no answer: nobody means either.
func (r *reader) items(v value) bool {
	n := int64(len(v.Items))
	least, most := v.shape.Min, v.shape.Max
	switch {
	case !r.isList(v):
		return false
	case n == 0 && least == 1:
		r.fail(v, EmptyValue)
	case most > 0 && n > most && least < 2:
		r.fail(v, TooMany, itoa(most))
	case n < least || most > 0 && n > most:
		r.fail(v, WrongCount, itoa(least), itoa(most))
	default:
		return true
	}
	return false
}

// eachItem calls use with every item of a list.
func (r *reader) eachItem(v value, use func(at value)) {
	if !r.items(v) {
		return
	}
	for i := range v.Items {
		use(v.item(i))
	}
}

// eachText calls use with every text of a list.
func (r *reader) eachText(v value, use func(at value, s string)) {
	r.eachItem(v, func(at value) {
		if s, ok := r.text(at); ok {
			use(at, s)
		}
	})
}

// Integer is the value of a number if that is exactly an integer. 10, 10.0 and
// 1e1 are the same: a Struct in Envoy's configuration turns every number into a
// double, and its JSON may come back in any of these forms.
func (n *Node) Integer() (int64, bool) {
	if n.Kind != Number {
		return 0, false
	}
	return integerOf(n.Text)
}

func integerOf(text string) (int64, bool) { return scaledOf(text, 0) }

// scaledOf is the value of a number with up to so many decimal places, in units of the last place.
func scaledOf(text string, places int) (int64, bool) {
	if !isNumber(text) {
		return 0, false
	}
	digits, negative := strings.CutPrefix(text, "-")
	exponent := 0
	if at := strings.IndexAny(digits, "eE"); at >= 0 {
		const most = 1 << 28 // of more digits than a policy may have
		exponent, _ = strconv.Atoi(digits[at+1:])
		exponent = max(min(exponent, most), -most)
		digits = digits[:at]
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	fraction = strings.TrimRight(fraction, "0")
	exponent -= len(fraction)
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return 0, true
	}
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed) + places
	const maxDigits = 18 // that surely fit an int64
	if exponent < 0 || len(trimmed)+exponent > maxDigits {
		return 0, false
	}
	n, err := strconv.ParseInt(trimmed+strings.Repeat("0", exponent), 10, 64)
	if negative {
		n = -n
	}
	return n, err == nil
}

// isNumber reports whether s has the syntax of a JSON number.
func isNumber(s string) bool { return s != "" && numberLen(s) == len(s) }

// numberLen is how long the number at the start of s is, 0 if there is none:
// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func numberLen(s string) int {
	digits, rest := cutDigits(strings.TrimPrefix(s, "-"))
	if digits == "" {
		return 0
	}
	if len(digits) > 1 && digits[0] == '0' {
		return len(s) - len(rest) - len(digits) + 1
	}
	if strings.HasPrefix(rest, ".") {
		digits, rest = cutDigits(rest[1:])
		if digits == "" {
			return 0
		}
	}
	if rest != "" && rest[0]|0x20 == 'e' {
		rest = rest[1:]
		if rest != "" && (rest[0] == '+' || rest[0] == '-') {
			rest = rest[1:]
		}
		digits, rest = cutDigits(rest)
		if digits == "" {
			return 0
		}
	}
	return len(s) - len(rest)
}

func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}
