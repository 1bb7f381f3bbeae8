package policy

import (
	"errors"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Key is a key of a rule: the values of its parts. Re-use one from request to request: it
// keeps its memory.
type Key struct {
	Parts []Value
	Bytes []byte // all parts, as they are hashed

	readings []reading
}

// Value is one part of a key.
type Value struct {
	Label   string // of a first_of: which of its key parts the request has
	Text    string
	Present bool
}

// reading is what a server may take for a part beside its value.
type reading struct {
	part int
	text string
}

// Whole is the value for people and for patterns.
func (v *Value) Whole() string {
	if v.Label == "" {
		return v.Text
	}
	return v.Label + "=" + v.Text
}

// Reset empties the key.
func (k *Key) Reset() {
	k.Parts, k.Bytes, k.readings = k.Parts[:0], k.Bytes[:0], k.readings[:0]
}

// Add appends the value of the next key part.
func (k *Key) Add(v Value) {
	k.Parts = append(k.Parts, v)
	if !v.Present {
		k.Bytes = state.AppendMissing(k.Bytes)
		return
	}
	if v.Label != "" {
		k.Bytes = state.AppendPart(k.Bytes, v.Label)
	}
	k.Bytes = state.AppendPart(k.Bytes, v.Text)
}

// AddReading notes what else a server may take a part for. Overrides judge by it, too.
func (k *Key) AddReading(part int, text string) {
	k.readings = append(k.readings, reading{part, text})
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
	if len(parts) != len(r.Key) {
		word := " parts, not "
		if len(r.Key) == 1 {
			word = " part, not "
		}
		return errors.New("the key of rule " + strconv.Quote(r.Name) + " has " + strconv.Itoa(len(r.Key)) + word + strconv.Itoa(len(parts)))
	}
	k.Reset()
	for i, text := range parts {
		switch {
		case text == MissingPart && r.MissingKey == MissingShare:
			k.Add(Value{})
			continue
		case text == MissingPart:
			return errors.New("part " + strconv.Itoa(i) + " of the key of rule " + strconv.Quote(r.Name) + " is " + MissingPart +
				", but only missing_key: share counts such a key: a text of these letters is written =" + MissingPart)
		case strings.TrimLeft(text, "=") == MissingPart:
			text = text[1:]
		}
		label, value, err := r.Key[i].Cut(text)
		if err != nil {
			return errors.New("part " + strconv.Itoa(i) + " of the key of rule " + strconv.Quote(r.Name) + ": " + err.Error())
		}
		k.Add(Value{label, value, true})
	}
	return nil
}
