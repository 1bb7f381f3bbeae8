package policy

import "strings"

// matchFields is "match".
var matchFields = []field[Match]{
	{
		name: "hosts", shape: listOf("host"),
		doc:  `Hosts without port, in any case: exact, or "*.example.com" for all below it.`,
		read: readHosts,
	},
	{
		name: "methods", shape: listOf("method"),
		doc:  "Methods, such as GET; in any case, but for exempt.",
		read: readMethods,
	},
	{
		name: "paths", shape: listOf("path"),
		doc:  `Paths without query, escapes such as %20 resolved: prefix*, exact ("=" before it takes a * literally), or "~" and an RE2 expression that matches in full.`,
		read: readPaths,
	},
	{
		name: "headers", shape: shape{form: formPatterns},
		doc:  `From header names to values: exact ("=" before it takes signs literally), prefix*, *suffix, "~" and an RE2 expression, "*" for present, "!" for absent.`,
		read: readHeaderMatches,
	},
	{
		name: "client_ips", shape: listOf("network"),
		doc:  "Addresses and networks (10.0.0.0/8) of the client, as Envoy trusts it.",
		read: readClientIPs,
	},
}

// readExempt reads a list of matches. One without conditions would exempt every
// request, which no one means.
func readExempt(r *reader, v value, rule *Rule) {
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	if count := len(v.node.Items); count > MaxExempt {
		r.fail(v, "has "+itoa(int64(count))+" exemptions, the most is "+itoa(MaxExempt))
		return
	}
	for i := range v.node.Items {
		at := v.item(i, objectOf("match"))
		if at.node.Kind == Object && len(at.node.Fields) == 0 {
			r.fail(at, "would exempt every request: give it a condition, or set mode to off")
			continue
		}
		var m Match
		readObject(r, at, matchFields, &m)
		rule.Exempt = append(rule.Exempt, m)
	}
}

// eachText calls use with every text of a list. An empty list is refused: it
// would match every request where its writer meant none.
func eachText(r *reader, v value, use func(at value, s string)) {
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	if len(v.node.Items) == 0 {
		r.fail(v, "must not be empty: remove the field to match every request")
	}
	for i := range v.node.Items {
		at := v.item(i, shape{form: formText})
		if s, ok := r.text(at); ok {
			use(at, s)
		}
	}
}

func readHosts(r *reader, v value, m *Match) {
	eachText(r, v, func(at value, s string) {
		host, err := parseHost(s)
		if err != nil {
			r.fail(at, err.Error())
			return
		}
		m.Hosts = append(m.Hosts, host)
	})
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}

func readMethods(r *reader, v value, m *Match) {
	eachText(r, v, func(at value, s string) {
		upper := strings.ToUpper(s)
		switch {
		case !isToken(s):
			r.fail(at, "must be a method such as GET, not "+quote(s))
		case s != upper && indexOf(methods, upper) >= 0:
			r.fail(at, "methods are upper case: write "+quote(upper))
		default:
			m.Methods = append(m.Methods, s)
		}
	})
}

func readPaths(r *reader, v value, m *Match) {
	eachText(r, v, func(at value, s string) {
		p, err := parsePath(s, &r.expressions)
		if err != nil {
			r.fail(at, err.Error())
			return
		}
		m.Paths = append(m.Paths, p)
	})
}

func readHeaderMatches(r *reader, v value, m *Match) {
	if v.node.Kind != Object {
		r.mismatch(v)
		return
	}
	if len(v.node.Fields) == 0 {
		r.fail(v, "must not be empty: remove the field to match every request")
	}
	first := make(map[string]*Field, len(v.node.Fields))
	for i := range v.node.Fields {
		f := &v.node.Fields[i]
		at := value{node: f.Value, at: v.at.field(f.Name), shape: shape{form: formText}}
		name, fault := headerName(f.Name)
		if fault != "" {
			r.failAt(f.Line, f.Column, at.at, fault)
			continue
		}
		if first[name] != nil {
			r.duplicateField(v, f, first[name])
			continue
		}
		first[name] = f
		if s, ok := r.text(at); ok {
			p, err := parseHeaderValue(s, &r.expressions)
			if err != nil {
				r.fail(at, err.Error())
				continue
			}
			m.Headers = append(m.Headers, HeaderMatch{Name: name, Value: p})
		}
	}
}

// headerName is a header's name in lower case, or what is wrong with it.
func headerName(s string) (name, fault string) {
	switch {
	case strings.HasPrefix(s, ":"):
		return "", "must be a header, not " + quote(s) + ": use host, method or path"
	case !isToken(s):
		return "", "must be a header's name such as x-user-id, not " + quote(s)
	case len(s) > MaxNameBytes:
		return "", "must be at most " + itoa(MaxNameBytes) + " bytes, not " + itoa(int64(len(s)))
	}
	return strings.ToLower(s), ""
}

// headerNameAt reads a header's name given as a value.
func (r *reader) headerNameAt(v value) string {
	s, ok := r.text(v)
	if !ok {
		return ""
	}
	name, fault := headerName(s)
	if fault != "" {
		r.fail(v, fault)
	}
	return name
}
