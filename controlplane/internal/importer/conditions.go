package importer

import (
	"regexp"
	"strconv"
	"strings"
)

// conditions collects Envoy's conditions on a request: those that must hold,
// and those that must not.
type conditions struct {
	match   match
	exempt  []match
	unknown []string
	notes   []string
}

func (c *conditions) add(p part, v pattern, inverted bool) {
	m := &c.match
	if inverted {
		c.exempt = append(c.exempt, match{})
		m = &c.exempt[len(c.exempt)-1]
	}
	if !p.restrict(m, v) {
		c.unknown = append(c.unknown, "A condition on "+p.describe()+" was not translated: no match here can say it, or not twice.")
		if inverted {
			c.exempt = c.exempt[:len(c.exempt)-1]
		}
	}
}

func (p part) describe() string {
	if p.name != "" {
		return p.kind + " " + p.name
	}
	return p.kind
}

// header reads a HeaderMatcher.
func (c *conditions) header(o *object) {
	name := o.text("name")
	p := headerPart(name)
	if p.kind == "header" && !isHeaderName(name) {
		o.fail("name", "must be the name of a header, not "+strconv.Quote(name))
		return
	}
	inverted := o.boolean("invert_match", false)
	if o.boolean("treat_missing_header_as_empty", false) {
		c.notes = append(c.notes, "A missing header "+name+" is empty to Envoy in one condition; here it is missing.")
	} else if inverted && p.kind == "header" && !o.has("present_match") {
		c.add(p, pattern{wildcard, "*"}, false) // a header that is missing fits neither way
	}
	v, known := readHeaderPattern(o)
	switch {
	case !known:
		c.unknown = append(c.unknown, "A condition on the header "+name+" was not translated.")
	case v.kind == anyValue && p.kind != "header":
	case v.kind == anyValue: // present, or absent
		present := o.boolean("present_match", true) != inverted
		value := "*"
		if !present {
			value = "!"
		}
		if !c.match.and(match{headers: []headerMatch{{p.name, value}}}) {
			c.unknown = append(c.unknown, "Two conditions on the header "+name+" are more than a match can hold.")
		}
	case inverted && p.kind == "header" && c.match.header(name) && !o.boolean("treat_missing_header_as_empty", false):
		c.exempt = append(c.exempt, match{headers: []headerMatch{{p.name, v.value()}}})
	default:
		c.add(p, v, inverted)
	}
}

// readHeaderPattern reads what a HeaderMatcher wants of the value; any for one
// that wants it to be there.
func readHeaderPattern(o *object) (pattern, bool) {
	if s := o.child("string_match"); s != nil {
		return readStringMatch(s)
	}
	for _, old := range []struct{ field, as string }{
		{"exact_match", "exact"}, {"prefix_match", "prefix"}, {"suffix_match", "suffix"}, {"contains_match", "contains"},
	} {
		if o.has(old.field) {
			return stringPattern(old.as, o.text(old.field), false), true
		}
	}
	if re := o.child("safe_regex_match"); re != nil {
		re.ignore("google_re2", "regex")
		return re.expression()
	}
	if o.has("range_match") {
		o.ignore("range_match")
		return pattern{}, false
	}
	return pattern{}, true
}

// readStringMatch reads a StringMatcher.
func readStringMatch(o *object) (pattern, bool) {
	fold := o.boolean("ignore_case", false)
	for _, as := range []string{"exact", "prefix", "suffix", "contains"} {
		if o.has(as) {
			return stringPattern(as, o.text(as), fold), true
		}
	}
	if re := o.child("safe_regex"); re != nil {
		re.ignore("google_re2", "regex")
		return re.expression()
	}
	o.ignore("custom")
	return pattern{}, false
}

// expression reads a RegexMatcher.
func (o *object) expression() (pattern, bool) {
	text := o.text("regex")
	if _, err := regexp.Compile(text); err != nil || text == "" {
		o.fail("regex", "must be an expression of RE2, not "+strconv.Quote(text))
		return pattern{}, false
	}
	return pattern{expression, text}, true
}

func stringPattern(as, text string, fold bool) pattern {
	literal := strings.Contains(text, "*")
	if !fold && !literal {
		switch as {
		case "exact":
			return pattern{exactly, text}
		case "prefix":
			return pattern{wildcard, text + "*"}
		case "suffix":
			return pattern{wildcard, "*" + text}
		}
		return pattern{wildcard, "*" + text + "*"}
	}
	if as == "exact" && !fold {
		return pattern{exactly, text}
	}
	re := regexp.QuoteMeta(text)
	if as == "prefix" || as == "contains" {
		re += ".*"
	}
	if as == "suffix" || as == "contains" {
		re = ".*" + re
	}
	if fold {
		re = "(?i)" + re
	}
	return pattern{expression, re}
}

// routeMatch reads a route's match.
func (c *conditions) routeMatch(o *object) {
	fold := !o.boolean("case_sensitive", true)
	switch {
	case o.has("path"):
		c.add(fullPath, stringPattern("exact", o.text("path"), fold), false)
	case o.has("prefix"):
		if p := o.text("prefix"); p != "/" && p != "" {
			c.add(fullPath, stringPattern("prefix", p, fold), false)
		}
	case o.has("path_separated_prefix"):
		c.add(fullPath, pattern{expression, regexp.QuoteMeta(o.text("path_separated_prefix")) + "(/.*)?"}, false)
	case o.has("safe_regex"):
		if v, ok := o.child("safe_regex").expression(); ok {
			c.add(fullPath, v, false)
		}
	default:
		c.unknown = append(c.unknown, "Its route's condition on the path was not translated.")
	}
	for _, h := range o.children("headers") {
		c.header(h)
	}
	for _, other := range []string{"query_parameters", "cookies", "runtime_fraction", "grpc", "tls_context", "dynamic_metadata", "filter_state"} {
		if o.has(other) {
			c.unknown = append(c.unknown, "Its route asks for "+other+", which no match here can say.")
		}
	}
}
