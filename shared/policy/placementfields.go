package policy

import "strings"

// Placement is what a policy file says to the control plane alone: the policy's name,
// and which proxies it is for. Proxies never get it, so their reader refuses it.
type Placement struct {
	Name    string
	Proxies *Selector // nil = those that no other policy takes
}

// Selector says which proxies a policy is for: those for which all hold that is given.
// In each pattern a * stands for any characters, or none.
type Selector struct {
	Node     string            // of the node id
	Cluster  string            // of the node's cluster
	SAN      string            // of the name in the certificate that grants the node id
	Metadata map[string]string // of texts in the node's metadata, "outer.inner" is one inside a struct
}

const (
	// DefaultName is the name of a policy that has none.
	DefaultName = "default"
	// MaxPolicyName is the longest name of a policy.
	MaxPolicyName = 63
	// MaxPatternBytes is the longest pattern of a Selector.
	MaxPatternBytes = 256
	// MaxMetadata is how many texts of the metadata a Selector may name.
	MaxMetadata = 8

	trustMetadata = "metadata"
)

// The tables are made when they are asked for, so that the filter does without.
func placementObject() *object[Placement] {
	return newObject("policy", []field[Placement]{
		{"name", textOf("policy_name"), DefaultName, readPolicyName},
		{"proxies", objectOf("proxies"), "", func(r *reader, v value, p *Placement) {
			p.Proxies = &Selector{}
			if readSound(r, v, selectorObject(), p.Proxies) {
				r.checkSelector(v, p.Proxies)
			}
		}},
	})
}

func selectorObject() *object[Selector] {
	pattern := func(into func(*Selector) *string) func(*reader, value, *Selector) {
		return func(r *reader, v value, s *Selector) { *into(s) = r.selectorPattern(v) }
	}
	return newObject("proxies", []field[Selector]{
		{"node", textShape, "", pattern(func(s *Selector) *string { return &s.Node })},
		{"cluster", textShape, "", pattern(func(s *Selector) *string { return &s.Cluster })},
		{"metadata", Shape{Form: FormTexts}, "", readSelectorMetadata},
		{"san", textShape, "", pattern(func(s *Selector) *string { return &s.SAN })},
		{"trust", word(trustMetadata), "", func(r *reader, v value, _ *Selector) { r.word(v) }},
	})
}

// SplitPlacement parts a policy file's document: what ReadPlacement reads, and the policy
// as proxies get it.
func SplitPlacement(doc *Node) (placement, rest *Node) {
	if doc == nil || doc.Kind != Object {
		return &Node{Kind: Object}, doc
	}
	here, there := *doc, *doc
	here.Fields, there.Fields = nil, nil
	for _, f := range doc.Fields {
		if indexOf(placementObject().Fields, f.Name) >= 0 {
			here.Fields = append(here.Fields, f)
		} else {
			there.Fields = append(there.Fields, f)
		}
	}
	return &here, &there
}

// PushedJSON is a policy file's document as proxies get it.
func PushedJSON(doc *Node) []byte {
	_, rest := SplitPlacement(doc)
	return AppendJSON(nil, rest)
}

// ReadPlacement reads the first part of a document. It reports every problem; with any
// problem the placement is not valid.
func ReadPlacement(doc *Node) (Placement, []Problem) {
	r := &reader{}
	v := valueOf(doc)
	p := Placement{}
	if !readSound(r, v, placementObject(), &p) {
		return p, r.found(doc)
	}
	switch {
	case p.Name == DefaultName && p.Proxies != nil:
		r.fail(v.field("proxies"), DefaultProxies)
	case p.Name != DefaultName && p.Proxies == nil:
		r.fail(v.field("name"), NameWithoutProxies)
	}
	return p, r.found(doc)
}

func readPolicyName(r *reader, v value, p *Placement) {
	s, ok := r.text(v)
	if !ok {
		return
	}
	p.Name = s
	if !IsPolicyName(s) {
		r.fail(v, BadPolicyName)
	}
}

// IsPolicyName says whether a policy may have the name.
func IsPolicyName(s string) bool {
	other := func(c rune) bool {
		return c > '~' || !isDigit(byte(c)) && !isLetter(byte(c)) && c != '-' && c != '_'
	}
	return s != "" && len(s) <= MaxPolicyName && !strings.ContainsFunc(s, other)
}

func (r *reader) selectorPattern(v value) string { return r.textOf(v, MaxPatternBytes) }

func readSelectorMetadata(r *reader, v value, s *Selector) {
	if v.Kind != Object {
		r.fail(v, WrongValue)
		return
	}
	if n := len(v.Fields); n == 0 || n > MaxMetadata {
		r.fail(v, WrongCount, "1", itoa(MaxMetadata))
		return
	}
	s.Metadata = map[string]string{}
	for i := range v.Fields {
		f := &v.Fields[i]
		if _, twice := s.Metadata[f.Name]; twice {
			r.duplicate(v, f, f)
		}
		if f.Name == "" || len(f.Name) > MaxNameBytes {
			r.failName(v, f, TooLong, itoa(MaxNameBytes))
		}
		s.Metadata[f.Name] = r.selectorPattern(value{Place{Node: f.Value}, &textShape})
	}
}

// checkSelector judges what the fields say together.
func (r *reader) checkSelector(v value, s *Selector) {
	switch {
	case s.Node == "" && s.Cluster == "" && s.SAN == "" && s.Metadata == nil:
		r.fail(v, EmptyValue)
	case s.Metadata != nil && !v.has("trust"):
		r.fail(v.field("metadata"), UntrustedMetadata)
	case s.Metadata == nil && v.has("trust"):
		r.fail(v.field("trust"), TrustMisplaced)
	}
}
