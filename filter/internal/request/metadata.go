package request

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// Dynamic metadata is read as protocol buffers, where each value has its type:
//
//	Metadata: 1 = entries of a map from namespaces to Struct
//	Struct:   1 = entries of a map from names to Value
//	entry:    1 = the name, 2 = what it stands for
//	Value:    2 = double, 3 = text, 4 = bool, 5 = Struct, 6 = list (1 = each Value)

type field = wire.Field[string]

// cut cuts the first field off a message. ok is false if the message has no whole field.
func cut(message *string) (f field, ok bool) {
	if *message == "" {
		return f, false
	}
	f, err := wire.Cut(message)
	return f, err == nil
}

// entry returns what a Metadata or a Struct has under a name.
func entry(message, name string) (value string, found bool) {
	for {
		f, more := cut(&message)
		if !more {
			return value, found
		}
		if f.ID != 1 || f.Wire != wire.Bytes {
			continue
		}
		key, content := "", ""
		for half, more := cut(&f.Bytes); more; half, more = cut(&f.Bytes) {
			switch {
			case half.Wire != wire.Bytes:
			case half.ID == 1:
				key = half.Bytes
			case half.ID == 2:
				content = half.Bytes
			}
		}
		if key == name {
			value, found = content, true
		}
	}
}

// metadataValue returns a value by its path, as text: a text itself, a number in decimals,
// true or false. An item of a list has its number as its name. A Struct, a list and null are
// not values.
func metadataValue(metadata string, path []string) (string, bool) {
	content, found := entry(metadata, path[0])
	if !found {
		return "", false
	}
	for i, name := range path[1:] {
		value := field{ID: 5, Bytes: content}
		if i > 0 {
			value = fieldOf(content)
		}
		switch value.ID {
		case 5:
			content, found = entry(value.Bytes, name)
		case 6:
			content, found = item(value.Bytes, name)
		default:
			return "", false
		}
		if !found {
			return "", false
		}
	}
	return valueText(fieldOf(content))
}

// wireOf has the wire type of each field of a Value.
var wireOf = [7]byte{1: wire.Varint, 2: wire.Fixed64, 3: wire.Bytes, 4: wire.Varint, 5: wire.Bytes, 6: wire.Bytes}

// fieldOf returns the field of a Value; the last one, if it has several.
func fieldOf(value string) (last field) {
	for f, more := cut(&value); more; f, more = cut(&value) {
		if f.ID < uint64(len(wireOf)) && f.Wire == wireOf[f.ID] {
			last = f
		}
	}
	return last
}

func item(list, number string) (text string, found bool) {
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", false
	}
	for f, more := cut(&list); more; f, more = cut(&list) {
		if f.ID != 1 || f.Wire != wire.Bytes {
			continue
		}
		if n == 0 {
			return f.Bytes, true
		}
		n--
	}
	return "", false
}

func valueText(f field) (string, bool) {
	switch f.ID {
	case 2:
		return numberText(math.Float64frombits(binary.LittleEndian.Uint64([]byte(f.Bytes)))), true
	case 3:
		return f.Bytes, true
	case 4:
		return strconv.FormatBool(f.Number != 0), true
	}
	return "", false
}

// numberText writes a number as JSON does: 42, 0.5, 1e+21.
func numberText(n float64) string {
	if n == 0 {
		return "0" // and -0
	}
	if abs := math.Abs(n); abs < 1e-6 || abs >= 1e21 {
		return strconv.FormatFloat(n, 'g', -1, 64)
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}
