package host

import "encoding/binary"

// appendValues appends the values of a name in headers of the ABI's form: a count,
// the sizes of names and values, then names and values, each followed by a zero
// byte. Numbers take four bytes. Broken headers have no values.
func appendValues(values []string, pairs, name string) []string {
	count, rest := number(pairs)
	if count > uint32(len(rest)/8) {
		return values
	}
	sizes, rest := rest[:8*count], rest[8*count:]
	for sizes != "" {
		var field [2]string
		for i := range field {
			var size uint32
			size, sizes = number(sizes)
			if size >= uint32(len(rest)) {
				return values
			}
			field[i], rest = rest[:size], rest[size+1:]
		}
		if field[0] == name {
			values = append(values, field[1])
		}
	}
	return values
}

// sizeOfPairs returns how many bytes the names and values have.
func sizeOfPairs(pairs string) int64 {
	count, rest := number(pairs)
	return max(int64(len(rest))-int64(count)*10, 0) // two numbers and two zero bytes each
}

// number cuts off a number.
func number(s string) (n uint32, rest string) {
	if len(s) < 4 {
		return 0, ""
	}
	return binary.LittleEndian.Uint32([]byte(s[:4])), s[4:]
}
