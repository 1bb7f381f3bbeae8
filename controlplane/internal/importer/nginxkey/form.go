// Package nginxkey says what the key of a limit of nginx is: it has forms, each for some requests. nginx does not count
// an empty key.
//
// An example: clients of the plan gold have no limit, those of staff share one, and all others are limited
// by address.
//
//	map $http_x_plan $counted { gold ""; staff all; default $binary_remote_addr; }
//	limit_req_zone $counted zone=one:1m rate=5r/s;
//
// The key $counted has three forms. The last two become rules:
//
//	requests                           parts      text
//	x-plan is gold                     none       empty
//	x-plan is staff                    none       all
//	x-plan is neither gold nor staff   client_ip  empty
//
// They are found by calls that lead back to formsOf, as the values of a map may have variables too:
//
//	formsOf            a text: joins the forms of its variables and of what is between them
//	  formsOfVariable  $binary_remote_addr is a part of the request
//	  mapped           $counted is what a map makes of its source: formsOf the source, and then formsOf each value that
//	                   the map has for one of these, for the requests that get it
//
// The calls from outside:
//
//	Variables.Read     reads a map or a geo                   map.go
//	Variables.Counted  the forms of a key that nginx counts   form.go
package nginxkey

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// Form is a form that a key has for some requests: parts of them, and a text that is the same for all.
type Form struct {
	Requests request.Selection
	parts    []keyPart // one for each variable
	Text     string
	Template string // the text, with a $ in the place of each part: nginx counts a$http_b apart from ${http_b}a
}

// Parts are the parts of the request in the key, each once.
func (f Form) Parts() (list []request.Part) {
	for _, p := range f.parts {
		if !slices.ContainsFunc(list, p.value.Part.Is) {
			list = append(list, p.value.Part)
		}
	}
	return list
}

// Variables are those that map and geo make, for keys.
type Variables struct {
	*draft.Findings
	parts   map[string]keyPart // by the variable in lower case
	byName  map[string]mapping // by that too
	lookups int                // of variables, for the key that Counted reads
}

// New is for keys without variables of map and geo. The note says how $server_name differs from the host; it is empty
// if they are the same.
func New(to *draft.Findings, noteOfServerName string) *Variables {
	parts := maps.Clone(partOf)
	parts["server_name"] = keyPart{value: request.Host.Value(), comment: noteOfServerName}
	return &Variables{Findings: to, parts: parts, byName: map[string]mapping{}}
}

// Counted are the forms of a limit's key that nginx counts: it does not count an empty key. If a policy cannot
// have the key, there is one form, whose rule is off.
func (v *Variables) Counted(key string) []Form {
	v.lookups = 0
	forms, why := v.formsOf(key)
	if why != "" {
		var unknown Form
		unknown.Requests.TurnOff(why)
		return []Form{unknown}
	}
	return slices.DeleteFunc(forms, func(f Form) bool { return len(f.parts) == 0 && f.Text == "" })
}

// maxForms bounds the forms of a key. Each text and each map on the way to it keeps the bound, as each form has a match
// of its own. maxLookups bounds the work: maps may look each other up, and each of ten maps may look the next one up
// many times, and have one form.
const (
	maxForms   = 100
	maxLookups = 1_000
)

var (
	tooManyForms   = request.WhyOff(fmt.Sprintf("The key has more than %d forms.", maxForms))
	tooManyLookups = request.WhyOff(fmt.Sprintf("The key looks up more than %d variables.", maxLookups))
)

var variableName = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))`)

// formsOf are the forms of a text with variables, or why a policy has none. That is no error: Counted makes a form
// whose rule is off for the reason.
func (v *Variables) formsOf(text string) (forms []Form, why request.WhyOff) {
	forms = []Form{{}}
	end := 0 // of the variable before
	for _, found := range variableName.FindAllStringSubmatchIndex(text, -1) {
		begin := found[0]
		name := strings.Trim(text[begin+1:found[1]], "{}")
		more, why := v.formsOfVariable(name)
		if why != "" {
			return nil, why
		}
		if len(forms)*len(more) > maxForms { // before they are made: see maxForms
			return nil, tooManyForms
		}
		forms = joinForms(forms, formsOfText(text[end:begin]))
		forms = joinForms(forms, more)
		end = found[1]
	}
	return joinForms(forms, formsOfText(text[end:])), ""
}

// formsOfText are the forms of a text without variables: one.
func formsOfText(text string) []Form { return []Form{{Text: text, Template: text}} }

// only are the forms for some of their requests.
func only(requests request.Selection, forms []Form) []Form {
	return joinForms([]Form{{Requests: requests}}, forms)
}

// joinForms are the forms of two texts behind each other. It leaves out those that no request has: a header that is
// gold in a map before is not staff in one behind, nor any other plan there.
func joinForms(before, behind []Form) (all []Form) {
	for _, a := range before {
		for _, b := range behind {
			f := Form{
				Requests: a.Requests, parts: slices.Concat(a.parts, b.parts),
				Text: a.Text + b.Text, Template: a.Template + b.Template,
			}
			f.Requests.NarrowTo(b.Requests)
			if a.Requests.IsApart(b.Requests) || f.Requests.IsNone() {
				continue
			}
			all = append(all, f)
		}
	}
	return all
}

// keyPart is a part of the request, as a variable of nginx has it.
type keyPart struct {
	value   request.Value // what a map looks up
	isBytes bool          // no text of a map is like it
	comment string        // what a policy counts less by; empty = nothing
}

// partOf has the variables with a name of their own. New adds server_name, with its note.
var partOf = map[string]keyPart{
	"binary_remote_addr":     {value: request.ClientIP.Value(), isBytes: true},
	"remote_addr":            {value: request.ClientIP.Value()},
	"host":                   {value: request.Host.Value()},
	"http_host":              {value: request.Host.Value(), comment: withoutPort},
	"uri":                    {value: request.FullPath.Value()},
	"document_uri":           {value: request.FullPath.Value()},
	"request_uri":            {value: request.PathWithQuery, comment: withoutQuery},
	"request_method":         {value: request.Method.Value()},
	"scheme":                 {value: request.Property("request", "scheme").Value()},
	"server_port":            {value: request.Property("destination", "port").Value()},
	"connection":             {value: request.ConnectionID.Value()},
	"ssl_client_s_dn":        {value: request.Property("connection", "subject_peer_certificate").Value()},
	"ssl_client_fingerprint": {value: request.Property("connection", "sha256_peer_certificate_digest").Value()},
}

const (
	withoutPort  = "The host is without its port here: $http_host has both."
	withoutQuery = "The path is without its query here: $request_uri has both."
)

// partsByPrefix are the parts that variables name behind a prefix, such as $http_x_user.
var partsByPrefix = map[string]request.PartKind{
	"http_": request.KindHeader, "cookie_": request.KindCookie, "arg_": request.KindQuery,
}

// formsOfVariable are the forms of a variable. Its name has no case: $Host is $host.
func (v *Variables) formsOfVariable(spelled string) (forms []Form, why request.WhyOff) {
	v.lookups++
	if v.lookups > maxLookups {
		return nil, tooManyLookups
	}
	if m, isMapped := v.byName[strings.ToLower(spelled)]; isMapped {
		return v.mapped(m)
	}
	p, ok := v.partOfVariable(spelled)
	if !ok {
		return nil, request.WhyOff("A policy has nothing like nginx' $" + spelled + ".")
	}
	f := Form{parts: []keyPart{p}, Template: "$"}
	if p.comment != "" {
		f.Requests.Comment(p.comment)
	}
	return []Form{f}, ""
}

// partOfVariable is the part of the request that is the value of a variable. A query parameter and a cookie keep their
// spelling, as a policy compares their names by case, unlike nginx.
func (v *Variables) partOfVariable(spelled string) (p keyPart, ok bool) {
	name := strings.ToLower(spelled)
	if p, ok := v.parts[name]; ok {
		return p, true
	}
	for prefix, kind := range partsByPrefix {
		switch rest, has := strings.CutPrefix(name, prefix); {
		case !has || rest == "":
		case kind == request.KindHeader:
			return keyPart{value: request.Header(strings.ReplaceAll(rest, "_", "-"))}, true
		default:
			return keyPart{value: request.Part{Kind: kind, Name: spelled[len(prefix):]}.Value()}, true
		}
	}
	return keyPart{}, false
}
