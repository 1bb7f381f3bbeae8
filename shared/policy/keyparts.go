package policy

import "strings"

const (
	// MaxPathSegments is how many segments an attribute's path, or a claim's,
	// may have.
	MaxPathSegments = 16
)

// jwtFields is "jwt".
var jwtFields = []field[KeyPart]{
	{
		name: "provider", shape: shape{form: formText}, required: true,
		doc:  "Where jwt_authn puts the claims: the provider's payload_in_metadata. Istio calls it payload, Envoy Gateway by the provider's name.",
		read: func(r *reader, v value, k *KeyPart) { k.Name = r.shortText(v) },
	},
	{
		name: "claim", shape: choice("claim", `a claim's name such as sub, or a list of names for one inside another`), required: true,
		doc:  "The claim: its name, or a list of names that lead to one inside another.",
		read: func(r *reader, v value, k *KeyPart) { k.Path = r.claim(v) },
	},
}

// shortText reads a text that names something of a request.
func (r *reader) shortText(v value) string {
	s, ok := r.text(v)
	if ok && len(s) > MaxNameBytes {
		r.fail(v, "must be at most "+itoa(MaxNameBytes)+" bytes, not "+itoa(int64(len(s))))
	}
	return s
}

func (r *reader) cookieName(v value) string {
	s := r.shortText(v)
	if s != "" && !isToken(s) {
		r.fail(v, "must be a cookie's name such as session, not "+quote(s))
	}
	return s
}

func (r *reader) claim(v value) []string {
	switch v.node.Kind {
	case String:
		return []string{r.shortText(v)}
	case List:
		return r.segments(v)
	default:
		r.mismatch(v)
		return nil
	}
}

// segments reads a list of texts that is not empty.
func (r *reader) segments(v value) (path []string) {
	if v.node.Kind != List {
		r.mismatch(v)
		return nil
	}
	if count := len(v.node.Items); count == 0 || count > MaxPathSegments {
		r.fail(v, "must have 1 to "+itoa(MaxPathSegments)+" texts, not "+itoa(int64(count)))
		return nil
	}
	for i := range v.node.Items {
		path = append(path, r.shortText(v.item(i, shape{form: formText})))
	}
	return path
}

// property reads the path of an attribute. Those that no request has yet, and
// those that are no single value, are refused: a rule would never apply.
func (r *reader) property(v value) []string {
	if v.node.Kind == String {
		path := strings.Split(v.node.Text, ".")
		for i := range path {
			path[i] = quote(path[i])
		}
		r.fail(v, "must be a list of the path's segments: write ["+join(path)+"]")
		return nil
	}
	path := r.segments(v)
	if len(path) == 0 {
		return path
	}
	switch path[0] {
	case "response", "upstream", "upstream_host_metadata":
		r.fail(v, "is not known before the request is decided: "+quote(path[0])+" comes with the upstream's answer")
	case "route_name": // empty until the router has seen the request
		r.fail(v, `is not known before the request is decided: write route, or {property: ["xds", "route_name"]}`)
	}
	if holdsMany(path) {
		r.fail(v, "holds many values: name one of them, such as "+propertyExample(path))
	}
	return path
}

// holdsMany reports whether an attribute is known to be no single value.
func holdsMany(path []string) bool {
	switch path[0] {
	case "request":
		return len(path) == 1 || len(path) == 2 && path[1] == "headers"
	case "connection", "source", "destination", "filter_state", "xds", "node":
		return len(path) == 1
	case "metadata":
		return len(path) < 4
	}
	return false
}

func propertyExample(path []string) string {
	switch path[0] {
	case "request":
		return `["request", "headers", "x-user-id"]`
	case "connection":
		return `["connection", "uri_san_peer_certificate"]`
	case "source", "destination":
		return `["` + path[0] + `", "port"]`
	case "metadata":
		return `["metadata", "filter_metadata", "envoy.lb", "user"]`
	case "xds":
		return `["xds", "route_name"]`
	case "node":
		return `["node", "id"]`
	}
	return `["filter_state", "NAME"]`
}

// readFirstOf reads the parts of which the first present one counts.
func readFirstOf(r *reader, v value, k *KeyPart) {
	*k = KeyPart{Kind: KeyFirstOf}
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	if count := len(v.node.Items); count < 2 || count > MaxKeyParts {
		r.fail(v, "must have 2 to "+itoa(MaxKeyParts)+" parts to choose from, not "+itoa(int64(count)))
		return
	}
	seen := map[string]string{}
	always := ""
	for i := range v.node.Items {
		at := v.item(i, objectOf("key"))
		var part KeyPart
		before := len(r.errs) + r.dropped
		r.keyPart(r, at, &part)
		if len(r.errs)+r.dropped > before {
			continue
		}
		label := part.Label()
		switch {
		case part.Kind == KeyFirstOf:
			r.fail(at, "a first_of holds no other: put its parts in the list")
		case seen[label] != "":
			r.fail(at, "is never chosen: "+seen[label]+" is "+label+" too")
		case always != "":
			r.warn(at, "is never chosen: every request has "+always+", which comes first")
		}
		seen[label] = at.at.String()
		if always == "" && (part.Kind == KeyHost || part.Kind == KeyMethod || part.Kind == KeyPath && part.Segment == 0) {
			always = label
		}
		k.Of = append(k.Of, part)
	}
}
