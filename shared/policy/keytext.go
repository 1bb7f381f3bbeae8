package policy

import (
	"errors"
	"strconv"
	"strings"
)

// Keys as text: the canonical definition of a key, by which counters are found, and keys and their
// parts as people write and read them.

// KeyDefinition is the canonical text of what the rule's key is made of, the
// same for every way to write it. Names carry their length, so that no two
// definitions share a text. Counters are found by it: a change here loses them.
func (r *Rule) KeyDefinition() string { return string(appendDefinitions(nil, r.Key)) }

func appendDefinitions(b []byte, parts []KeyPart) []byte {
	for i := range parts {
		if i > 0 {
			b = append(b, ',')
		}
		p := &parts[i]
		b = append(b, p.Kind.String()...)
		for _, name := range [...]string{p.Name, p.Scheme} {
			if name != "" {
				b = appendSized(b, name)
			}
		}
		if len(p.Path) > 0 {
			b = appendPath(b, p.Path)
		}
		switch p.Kind {
		case KeyClientIP, KeyAddress:
			b = appendNumber(appendNumber(b, p.V4Prefix), p.V6Prefix)
		case KeyPath:
			b = appendNumber(b, p.Segment)
		case KeyFirstOf:
			b = append(appendDefinitions(append(appendNumber(b, len(p.Of)), '('), p.Of), ')')
		default: // the names and the path say all
		}
	}
	return b
}

func appendNumber(b []byte, n int) []byte { return append(append(b, ':'), itoa(int64(n))...) }

// appendSized writes ":3:abc".
func appendSized(b []byte, text string) []byte {
	return append(append(appendNumber(b, len(text)), ':'), text...)
}

// appendPath writes ":2:1:a:1:b", the number of texts before them.
func appendPath(b []byte, path []string) []byte {
	b = appendNumber(b, len(path))
	for _, text := range path {
		b = appendSized(b, text)
	}
	return b
}

// Label names the part in words: "header:x-user-id", "client_ip". Among the
// parts of one first_of all differ; there the text of a key is LABEL=VALUE, so
// that one part's value is never taken for another's.
func (p *KeyPart) Label() string {
	label := p.Kind.String()
	for _, detail := range [...]string{p.Name, p.Scheme, strings.Join(p.Path, ".")} {
		if detail != "" {
			label += ":" + detail
		}
	}
	if p.Segment > 0 {
		label += ":" + itoa(int64(p.Segment))
	}
	return label
}

// Cut divides a key part as people write it. If it is a first_of, label says which of its
// key parts the value is of; else label is empty.
func (p *KeyPart) Cut(text string) (label, value string, err error) {
	if p.Kind != KeyFirstOf {
		return "", text, nil
	}
	labels := ""
	for i := range p.Of {
		label := p.Of[i].Label()
		if value, found := strings.CutPrefix(text, label+"="); found {
			return label, value, nil
		}
		labels += " or " + string(AppendString(nil, label+"="))
	}
	return "", "", errors.New("a first_of begins with what it is, " + strings.TrimPrefix(labels, " or "))
}

// Labeled is the part of a first_of with that label; for any other kind, and for no
// label, p itself.
func (p *KeyPart) Labeled(label string) *KeyPart {
	for i := range p.Of {
		if p.Of[i].Label() == label {
			return &p.Of[i]
		}
	}
	return p
}

// MissingPart stands for a part that the request lacks, in keys that people write and read.
const MissingPart = "(missing)"

// PartText is a part of a key as people write and read it; nil is a missing one. A value
// that reads like one has a "=" before it.
func PartText(part *string) string {
	switch {
	case part == nil:
		return MissingPart
	case strings.TrimLeft(*part, "=") == MissingPart:
		return "=" + *part
	}
	return *part
}

// ParseKey reads a key that people write: one text for each part of the rule's key, as of
// PartText.
func (r *Rule) ParseKey(k *Key, parts []string) error {
	ofRule := " of rule " + strconv.Quote(r.Name)
	if len(parts) != len(r.Key) {
		word := " parts, not "
		if len(r.Key) == 1 {
			word = " part, not "
		}
		return errors.New("the key" + ofRule + " has " + strconv.Itoa(len(r.Key)) + word + strconv.Itoa(len(parts)))
	}
	k.Reset()
	for i, text := range parts {
		place := "part " + strconv.Itoa(i) + " of the key" + ofRule
		switch {
		case text == MissingPart && r.MissingKey == MissingShare:
			k.Add(Value{})
			continue
		case text == MissingPart:
			return errors.New(place + " is " + MissingPart + ", but only missing_key: share counts such a key: " +
				"write =" + MissingPart + " if the text is meant")
		case strings.TrimLeft(text, "=") == MissingPart:
			text = text[1:]
		}
		label, value, err := r.Key[i].Cut(text)
		if err != nil {
			return errors.New(place + ": " + err.Error())
		}
		k.Add(Value{label, value, true})
	}
	return nil
}
