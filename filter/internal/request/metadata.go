package request

import (
	"encoding/binary"
	"math"
	"strconv"
)

// Dynamic metadata is read as protocol buffers, because there a value has its
// type:
//
//	Metadata: 1 = entries of a map from namespaces to Struct
//	Struct:   1 = entries of a map from names to Value
//	entry:    1 = the name, 2 = what it stands for
//	Value:    2 = double, 3 = text, 4 = bool, 5 = Struct, 6 = list (1 = each Value)

const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// protoField is one field of a message.
type protoField struct {
	number uint64
	wire   uint64 // how it is written
	bits   uint64 // of a varint or a fixed number
	bytes  string // of a text or message
}

// nextField cuts the first field off a message; false at the message's end and
// where it is broken.
func nextField(m *string) (f protoField, ok bool) {
	tag, ok := takeVarint(m)
	if !ok {
		return f, false
	}
	f.number, f.wire = tag>>3, tag&7
	switch f.wire {
	case wireVarint:
		f.bits, ok = takeVarint(m)
		return f, ok
	case wireBytes:
		size, ok := takeVarint(m)
		if !ok || size > uint64(len(*m)) {
			return f, false
		}
		f.bytes, *m = (*m)[:size], (*m)[size:]
		return f, true
	case wireFixed64, wireFixed32:
		size := 8
		if f.wire == wireFixed32 {
			size = 4
		}
		if len(*m) < size {
			return f, false
		}
		if size == 8 {
			f.bits = binary.LittleEndian.Uint64([]byte((*m)[:8]))
		}
		*m = (*m)[size:]
		return f, true
	}
	return f, false
}

func takeVarint(m *string) (n uint64, ok bool) {
	for i := 0; i < len(*m) && i < binary.MaxVarintLen64; i++ {
		c := (*m)[i]
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			*m = (*m)[i+1:]
			return n, true
		}
	}
	return 0, false
}

// entry returns the content of a name in a Metadata or a Struct.
func entry(message, name string) (value string, found bool) {
	for {
		f, ok := nextField(&message)
		if !ok {
			return value, found
		}
		if f.number != 1 || f.wire != wireBytes {
			continue
		}
		key, content := "", ""
		for {
			half, ok := nextField(&f.bytes)
			if !ok {
				break
			}
			switch {
			case half.wire != wireBytes:
			case half.number == 1:
				key = half.bytes
			case half.number == 2:
				content = half.bytes
			}
		}
		if key == name {
			value, found = content, true
		}
	}
}

// metadataValue returns a value by its path, as text: a text itself, a number in
// decimals, true or false. A list's items go by their numbers. Structs, lists
// and null are no values.
func metadataValue(metadata string, path []string) (string, bool) {
	content, found := entry(metadata, path[0])
	if !found {
		return "", false
	}
	for i, name := range path[1:] {
		var value protoField
		if i > 0 {
			value = oneOf(content)
		} else {
			value = protoField{number: 5, wire: wireBytes, bytes: content}
		}
		switch value.number {
		case 5:
			content, found = entry(value.bytes, name)
		case 6:
			content, found = item(value.bytes, name)
		default:
			return "", false
		}
		if !found {
			return "", false
		}
	}
	return valueText(oneOf(content))
}

// wireOf is how each field of a Value is written.
var wireOf = [7]uint64{1: wireVarint, 2: wireFixed64, 3: wireBytes, 4: wireVarint, 5: wireBytes, 6: wireBytes}

// oneOf returns the one field of a Value.
func oneOf(value string) (last protoField) {
	for {
		f, ok := nextField(&value)
		if !ok {
			return last
		}
		if f.number > 0 && f.number < uint64(len(wireOf)) && f.wire == wireOf[f.number] {
			last = f
		}
	}
}

func item(list, number string) (string, bool) {
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", false
	}
	for {
		f, ok := nextField(&list)
		if !ok {
			return "", false
		}
		if f.number != 1 || f.wire != wireBytes {
			continue
		}
		if n == 0 {
			return f.bytes, true
		}
		n--
	}
}

func valueText(f protoField) (string, bool) {
	switch f.number {
	case 2:
		return numberText(math.Float64frombits(f.bits)), true
	case 3:
		return f.bytes, true
	case 4:
		return strconv.FormatBool(f.bits != 0), true
	}
	return "", false
}

// numberText writes a number as JSON has it: 42, 0.5, 1e+21.
func numberText(n float64) string {
	if n == 0 {
		return "0" // and -0
	}
	if abs := math.Abs(n); abs < 1e-6 || abs >= 1e21 {
		return strconv.FormatFloat(n, 'g', -1, 64)
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}
