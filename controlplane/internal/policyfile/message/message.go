// Package message makes sentences of the problems that shared/policy finds: what
// is wrong and what would be right.
//
// Its invariant: it decides nothing, and returns a sentence for whatever it is
// given.
package message

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Of says what is wrong and what would be right.
func Of(p *policy.Problem) string {
	sentence, known := sentences[p.Code]
	switch {
	case p.Code == policy.WrongValue:
		return wrongValue(p.Node, p.Want)
	case p.Code == policy.UnknownField:
		return UnknownField(p.Args[0], p.Want.Of, policy.Schema(), homes)
	case p.Code == policy.DuplicateField && len(p.Args) > 0:
		return "appears twice, first in line " + p.Args[0] + ": keep one"
	case p.Code == policy.BadExpression:
		return "the regular expression " + quote(p.Args[0]) + " " +
			strings.Replace(p.Args[1], "error parsing regexp:", "is not RE2:", 1)
	case !known:
		return string(p.Code)
	}
	return strings.NewReplacer(parts(p)...).Replace(sentence)
}

// parts are what the sentences leave open, each with what this problem puts there.
func parts(p *policy.Problem) []string {
	list := []string{"{want}", Shape(p.Want), "{first}", p.First}
	if p.Node != nil {
		list = append(list, "{value}", Describe(p.Node), "{count}", strconv.Itoa(len(p.Node.Items)+len(p.Node.Fields)))
	}
	for i, arg := range p.Args {
		n := strconv.Itoa(i + 1)
		ns, _ := strconv.ParseInt(arg, 10, 64)
		list = append(list, "{"+n+"}", arg, `{"`+n+`"}`, quote(arg), "{ns "+n+"}", policy.FormatDuration(ns))
	}
	var windows []string
	for _, w := range p.Windows {
		windows = append(windows, Window(w))
	}
	if len(windows) > 0 {
		list = append(list, "{window}", windows[0], "{windows}", cmp.Or(strings.Join(windows[1:], ", "), "none"))
	}
	return list
}

// Window is all that makes a window what it is, in words.
func Window(w limit.Window) string {
	var with []string
	offset := w.OffsetNs
	switch {
	case w.Algorithm != limit.Concurrency:
	case w.PeriodNs == 0: // while its rule is read
		return policy.AlgorithmName(w.Algorithm)
	default:
		return policy.AlgorithmName(w.Algorithm) + " with hold " + policy.FormatDuration(w.PeriodNs)
	}
	if w.Algorithm == limit.Calendar {
		offset = w.ShiftNs()
		if offset < 0 {
			with = append(with, "utc_offset "+policy.FormatUTCOffset(-offset))
		}
	}
	if offset > 0 {
		with = append(with, "offset "+policy.FormatDuration(offset))
	}
	if w.Jitter > 0 {
		with = append(with, "jitter "+strconv.Itoa(int(w.Jitter))+"%")
	}
	if w.Elastic {
		with = append(with, "elastic")
	}
	s := policy.AlgorithmName(w.Algorithm) + " of " + policy.PeriodOf(w)
	if len(with) > 0 {
		s += " with " + strings.Join(with, " and ")
	}
	return s
}

// Home is an object whose fields people put in the wrong place, and the words for its place.
type Home struct{ Object, Place string }

// homes are those of the policy.
var homes = []Home{
	{"policy", "at the top of the policy"},
	{"quota", "in quota, at the top of the policy"},
	{"rule", "in a rule, an item of rules"},
	{"match", "in match"},
	{"limit", "in a limit, an item of limits"},
	{"key", "in a part of a key, an item of key"},
	{"settle", "in settle, in a rule"},
	{"answer", "in when, in settle"},
}

// UnknownField says what is wrong with a field that an object of a format does not have.
func UnknownField(name, object string, format []policy.ObjectSchema, homes []Home) string {
	known := fieldsOf(object, format)
	if near := Nearest(name, known); near != "" {
		return "unknown field: did you mean " + quote(near) + "?"
	}
	for _, home := range homes {
		if slices.Contains(fieldsOf(home.Object, format), name) {
			return "unknown field: it belongs " + home.Place
		}
	}
	if len(known) == 0 {
		return "unknown field: this object takes none"
	}
	return "unknown field: the fields here are " + strings.Join(known, ", ")
}

// fieldsOf are the names of an object's fields.
func fieldsOf(object string, format []policy.ObjectSchema) (names []string) {
	for _, o := range format {
		for i := range o.Fields {
			if o.Name == object {
				names = append(names, o.Fields[i].Name)
			}
		}
	}
	return names
}

// quote is s in quotes, cut where it is too long for a message.
func quote(s string) string { return strconv.Quote(policy.Clip(s)) }

// Nearest is the word a person most likely meant by s, or "" where none is
// near: at most a third of its letters, and at least one, may differ.
func Nearest(s string, words []string) string {
	const longest = 64 // no field or word is longer; bounds the work on hostile input
	if len(s) > longest {
		return ""
	}
	best, least := "", longest
	for _, w := range words {
		if d := distance(strings.ToLower(s), w); d <= max(1, len(w)/3) && d < least {
			best, least = w, d
		}
	}
	return best
}

// distance counts the insertions, deletions, substitutions and swaps
// of two side by side that turn a into b (optimal string alignment).
func distance(a, b string) int {
	d := make([][]int, len(a)+1) // between the first i bytes of a and the first j of b
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j], d[i][j-1], d[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
