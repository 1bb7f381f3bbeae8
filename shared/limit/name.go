package limit

// AppendName appends the name of a limit as the RateLimit response fields hold
// it: the inside of a structured-field string (RFC 9651). Characters that such a
// string cannot hold become "?".
func AppendName(b []byte, s string) []byte {
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
