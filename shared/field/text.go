// Package field writes what HTTP response fields are made of.
//
// Its invariant: whatever the text, the result is valid in a structured field
// (RFC 9651). It imports nothing, so that the filter and the library share it.
package field

// AppendText appends s as the inside of a structured-field string, without its
// quotes. Characters that such a string cannot hold become "?".
func AppendText(b []byte, s string) []byte {
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r > '~':
			b = append(b, '?')
		default:
			b = append(b, byte(r))
		}
	}
	return b
}
