package policydoc

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// objectDoc is an object of the policy file.
type objectDoc struct {
	name     string // "policy" is the whole file
	fields   []fieldDoc
	oneField bool // it has exactly one of the fields
}

// fieldDoc is a field of an object.
type fieldDoc struct {
	policy.FieldSchema
	text     string
	reserved bool // refused in a file: the control plane sets it
	is       typeDoc
}

// typeDoc is what a value looks like. The form choice has forms, lists and
// headers have the item.
type typeDoc struct {
	form     policy.Form
	words    []string
	min, max int64     // of an integer; of a list how many items, 0 = any number
	pattern  string    // of a text: RE2 and ECMAScript alike; "" = any
	object   string    // the name of an object
	item     *typeDoc  // of a list or of headers: each value
	forms    []typeDoc // of a choice
	text     string    // as errors say it: "must be …"
}

// model describes every object of the policy file, in the order of reading.
func model() (objects []objectDoc) {
	for _, o := range policy.Schema() {
		doc := objectDoc{name: o.Name, oneField: o.Name == "key"}
		for _, f := range o.Fields {
			at := o.Name + "." + f.Name
			doc.fields = append(doc.fields, fieldDoc{
				FieldSchema: f, text: texts[at], reserved: at == "policy.revision" || at == "policy.report_secret", is: typeOf(at, f.Shape),
			})
		}
		objects = append(objects, doc)
	}
	return objects
}

// typeOf is the type of the field at "OBJECT.FIELD".
func typeOf(at string, s policy.Shape) typeDoc {
	d := typeDoc{form: s.Form, words: s.Words, min: s.Min, max: s.Max, text: message.Shape(s)}
	switch s.Form {
	case policy.FormText:
		d.pattern = textPatterns[at]
	case policy.FormDuration:
		d.pattern = durationPattern
	case policy.FormPeriod:
		d.pattern = periodPattern
	case policy.FormList:
		item := itemOf(s.Of)
		d.item, d.min, d.max = &item, itemCounts[at][0], itemCounts[at][1]
	case policy.FormObject:
		d.object = s.Of
	case policy.FormPatterns:
		d.item, d.min = &typeDoc{form: policy.FormText, pattern: headerValuePattern}, 1
	case policy.FormChoice:
		d.forms = choices[s.Of]
	default: // the shape says all
	}
	return d
}

// itemOf is the type of a list's items, by the name that the list gives it.
func itemOf(name string) typeDoc {
	if d, known := items[name]; known {
		return d
	}
	return typeDoc{form: policy.FormObject, object: name}
}

// What the shapes leave to the reader's code is said here, so that the schema
// and the reference can say it too. A schema must accept all that the reader
// accepts, so patterns say no more than they can.
const (
	durationTerms   = `(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h|d|w))+`
	durationPattern = `^(?:0|` + durationTerms + `)$`
	periodWords     = `[0-9]*\s*(?:[Ss][Ee][Cc][Oo][Nn][Dd]|[Mm][Ii][Nn][Uu][Tt][Ee]|[Hh][Oo][Uu][Rr]|[Dd][Aa][Yy]|[Ww][Ee][Ee][Kk]|[Mm][Oo][Nn][Tt][Hh]|[Yy][Ee][Aa][Rr])[Ss]?`
	periodPattern   = `^\s*(?:` + periodWords + `|` + durationTerms + `)\s*$`
	limitPattern    = `^\s*[0-9]+\s*(?:/|[Pp][Ee][Rr])\s*(?:` + periodWords + `|` + durationTerms + `)\s*$`
	tokenPattern    = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" //nolint:gosec // a token of HTTP's grammar

	hostPattern        = `^(?:(?:\*\.)?[0-9A-Za-z_-][0-9A-Za-z_.-]*|\[[0-9A-Fa-f:.]+\])$`
	pathPattern        = `^(?:~.+|=\*|=/[^?]*|/[^?*]*\*?|\*)$`
	headerValuePattern = `^(?:\*|!|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
	keyPatternPattern  = `^(?:\*|=.*|~.+|[^!=~*][^*]*\*?|\*[^*]+)$`
)

// textPatterns are patterns of texts, by "OBJECT.FIELD"; other texts may be
// anything.
var textPatterns = map[string]string{
	"response.body":       `^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$`,
	"manage.path":         `^/(?:[^/?#%\\ ]+/)+$`,
	"manage.token_sha256": `^[0-9A-Fa-f]{64}$`,
	"header.name":         tokenPattern,
	"header.scheme":       tokenPattern,
	"address.header":      tokenPattern,
	"cost.header":         tokenPattern,
}

// itemCounts are the fewest and the most items of lists, by "OBJECT.FIELD"; a
// most of 0 is any number.
var itemCounts = map[string][2]int64{
	"policy.rules":     {0, policy.MaxRules},
	"policy.exempt":    {0, policy.MaxExempt},
	"rule.key":         {0, policy.MaxKeyParts},
	"rule.limits":      {0, policy.MaxWindows},
	"rule.overrides":   {0, policy.MaxOverrides},
	"match.hosts":      {1, 0},
	"match.client_ips": {1, 0},
	"rule.exempt":      {0, policy.MaxExempt},
	"key.first_of":     {2, policy.MaxKeyParts},
	"key.property":     {1, 0},
	"match.methods":    {1, 0},
	"match.paths":      {1, 0},
	"override.key":     {1, policy.MaxKeyParts},
	"override.limits":  {1, policy.MaxWindows},
}

var anyText = typeDoc{form: policy.FormText, text: "text"}

// items are the items of lists that are no plain objects.
var items = map[string]typeDoc{
	"host":    {form: policy.FormText, pattern: hostPattern, text: "host"},
	"method":  {form: policy.FormText, pattern: tokenPattern, text: "method"},
	"path":    {form: policy.FormText, pattern: pathPattern, text: "path pattern"},
	"network": {form: policy.FormText, pattern: `^[0-9A-Fa-f:.]+(?:/[0-9]+)?$`, text: "address or network"},
	"segment": anyText,
	"pattern": {form: policy.FormText, pattern: keyPatternPattern, text: "pattern"},
	"limit": {form: policy.FormChoice, forms: []typeDoc{
		{form: policy.FormText, pattern: limitPattern, text: `text such as "10/minute"`}, {form: policy.FormObject, object: "limit"},
	}},
	"key": {form: policy.FormChoice, forms: []typeDoc{
		{form: policy.FormWord, words: []string{"client_ip", "host", "method", "path", "route"}}, {form: policy.FormObject, object: "key"},
	}},
}

var oneCost = []typeDoc{{form: policy.FormInteger, min: 1, max: math.MaxUint32}, {form: policy.FormObject, object: "cost"}}

// choices are the forms of values that have several.
var choices = map[string][]typeDoc{
	"missing_key": {{form: policy.FormWord, words: []string{"skip", "deny", "share"}}, {form: policy.FormObject, object: "missing_key"}},
	"lease": {
		{form: policy.FormWord, words: []string{"auto", "off"}},
		{form: policy.FormInteger, min: 1, max: policy.MaxLease},
	},
	"cost": append(slices.Clone(oneCost), typeDoc{
		form: policy.FormList, min: 1, max: policy.MaxCosts, item: &typeDoc{form: policy.FormObject, object: "matched_cost"},
	}),
	"one_cost": oneCost,
	"header":   {{form: policy.FormText, pattern: tokenPattern, text: "text"}, {form: policy.FormObject, object: "header"}},
	"path":     {{form: policy.FormWord, words: []string{"full"}}, {form: policy.FormObject, object: "path"}},
	"response_headers": {{
		form: policy.FormPatterns, item: &anyText, text: "object from header names to texts",
	}},
	"grpc_status": {{form: policy.FormWord, words: policy.GRPCStatuses[1:]}, {form: policy.FormInteger, min: 1, max: 16}},
	"claim":       {anyText, {form: policy.FormList, item: &anyText, min: 1}},
	"utc_offset":  {{form: policy.FormText, pattern: `^(?:[+-](?:0[0-9]|1[01]):[0-5][0-9]|[+-]12:00|\+1[23]:[0-5][0-9]|\+14:00)$`, text: `text such as "+02:00"`}},
	"percent": {{form: policy.FormInteger, min: 1, max: 100}, {
		form: policy.FormText, pattern: `^[0-9]+(?:\.[0-9]+)?(?:[Ee][+-]?[0-9]+)?%$`, text: `text such as "25%"`,
	}},
}
